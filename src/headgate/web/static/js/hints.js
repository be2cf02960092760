// Hints of the server: which kinds of things have changed. One stream for all tabs of a browser: the tab that holds a lock
// reads it and passes hints on. A hidden tab gives the lock away and asks for nothing.
// The id of a hint has the version of each kind ("jobs-12.workers-4"), so that each tab finds out what it has missed.
const CHANNEL = "headgate-live";
const ERRORS_MAX = 2; // then it is asked every 5 seconds
const AGAIN_MS = 30000; // when a stream is tried again
const ALL = ["jobs", "settings", "workers", "operations", "mode"];

const versions = (id) => new Map((id || "").split(".").filter(Boolean).map((one) => one.split("-")));

export function followHints({ changed, showState, wanted }) {
  const root = document.documentElement;
  const channel = "BroadcastChannel" in window ? new BroadcastChannel(CHANNEL) : null;
  let seen = null; // the last id
  let source = null;
  let release = null; // gives the lock away
  let waiting = null; // the request for the lock
  let poll = 0;
  let again = 0;
  let errors = 0;

  function hear(id) {
    const before = versions(seen);
    const now = versions(id);
    // The first hint: the page may be older than the stream.
    const kinds = seen === null ? ALL : [...now.keys()].filter((kind) => before.get(kind) !== now.get(kind));
    seen = id;
    if (kinds.length) changed(kinds);
  }

  function open() {
    const url = `${root.dataset.ui}/live${seen ? `?after=${encodeURIComponent(seen)}` : ""}`;
    source = new EventSource(url);
    const received = (event) => {
      errors = 0;
      stopPolling();
      showState("live", "Live");
      hear(event.lastEventId);
      channel?.postMessage({ id: event.lastEventId });
    };
    source.addEventListener("hint", received);
    source.addEventListener("error", () => {
      errors += 1;
      if (errors < ERRORS_MAX && source.readyState !== EventSource.CLOSED) return showState("wait", "Connecting");
      close();
      startPolling(5000, "Every 5 s: no stream");
      again = setTimeout(open, AGAIN_MS);
    });
  }

  function close() {
    clearTimeout(again);
    source?.close();
    source = null;
  }

  function lead() {
    if (!navigator.locks) return open(); // plain HTTP beyond loopback: a stream for each tab
    waiting = new AbortController();
    navigator.locks.request(CHANNEL, { signal: waiting.signal }, () => new Promise((resolve) => {
      release = resolve;
      open();
    })).catch(() => {});
  }

  function stop() {
    waiting?.abort();
    waiting = null;
    close();
    release?.();
    release = null;
    stopPolling();
  }

  function startPolling(ms, text) {
    stopPolling();
    showState("poll", text);
    poll = setInterval(() => { if (!document.hidden) changed(ALL); }, ms);
  }

  function stopPolling() {
    clearInterval(poll);
    poll = 0;
  }

  function start() {
    stop();
    const mode = root.dataset.live;
    if (mode === "off" || !wanted()) return showState("off", wanted() ? "Off" : "");
    if (mode !== "live") return document.hidden || startPolling(Number(mode) * 1000, `Every ${mode} s`);
    if (document.hidden) return showState("off", "Paused");
    showState(seen === null ? "wait" : "live", seen === null ? "Connecting" : "Live");
    lead();
    channel?.postMessage({ ask: true });
  }

  channel?.addEventListener("message", (event) => {
    if (root.dataset.live !== "live") return;
    if (event.data?.ask && source && seen !== null) channel.postMessage({ id: seen }); // a tab has just been opened
    if (!event.data?.id) return;
    if (!document.hidden) showState("live", "Live");
    hear(event.data.id);
  });
  document.addEventListener("visibilitychange", () => {
    errors = 0;
    start();
  });
  window.addEventListener("pagehide", stop);
  window.addEventListener("pageshow", (event) => { if (event.persisted) start(); });
  start();
  return { restart: start };
}
