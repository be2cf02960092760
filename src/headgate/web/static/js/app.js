// What every page runs. Each module works alone; a page without scripts stays readable and its forms work.
import { startCopying } from "./copy.js";
import { startDelayed } from "./delayed.js";
import { startDialogs } from "./dialogs.js";
import { startForms } from "./forms.js";
import { startKeyboard } from "./keyboard.js";
import { startLive } from "./live.js";
import { startMenus } from "./menus.js";
import { startTheme } from "./theme.js";
import { startTimes } from "./times.js";
import { startToasts } from "./toasts.js";

startTheme();
startToasts();
startDelayed();
startDialogs();
startForms();
startTimes();
startCopying();
startLive();
startMenus();
startKeyboard();
