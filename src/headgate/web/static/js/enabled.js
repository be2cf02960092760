// Runs before the first paint: what needs scripts is shown at once, and nothing moves when the modules have come.
document.documentElement.classList.add("js");
