// Refresh the page when its stream says so, show times in the zone of the browser, and serve the keyboard.
(() => {
  "use strict";
  const page = document.getElementById("page");
  const live = document.getElementById("live");
  const POLL_MS = 5000;
  let stream = null, timer = null;

  // What is selected or being written stays.
  const busy = () => page.querySelector("td input:checked") || (typing() && page.contains(document.activeElement));
  const refresh = () => { if (!busy()) htmx.trigger(page, "aw:changed"); };
  const stop = () => { stream?.close(); stream = null; clearInterval(timer); timer = null; };
  const poll = () => { stop(); timer = setInterval(refresh, POLL_MS); };
  const start = () => {
    stop();
    if (live.getAttribute("aria-pressed") !== "true" || document.hidden || !page.dataset.live) return;
    stream = new EventSource(page.dataset.live);
    stream.addEventListener("changed", refresh);
    // Without streams (a WSGI server, a proxy, too many viewers) the page asks from time to time.
    stream.onerror = () => { if (stream && stream.readyState === EventSource.CLOSED) poll(); };
  };

  live.addEventListener("click", () => {
    const on = live.getAttribute("aria-pressed") !== "true";
    live.setAttribute("aria-pressed", String(on));
    if (on) { start(); refresh(); } else stop();
  });
  if (!page.dataset.live) live.hidden = true;
  document.addEventListener("visibilitychange", start);
  window.addEventListener("pagehide", stop);

  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("aw-theme", root.dataset.theme); } catch { /* not stored */ }
  });

  // The exact time of the viewer's zone is the title of each time.
  const format = new Intl.DateTimeFormat(document.documentElement.lang, { dateStyle: "medium", timeStyle: "medium" });
  const tellTimes = () => document.querySelectorAll("time[datetime]").forEach((one) => {
    const at = new Date(one.dateTime);
    if (!Number.isNaN(at.getTime())) one.title = format.format(at);
  });

  // The first box of a table selects all of its rows.
  document.addEventListener("change", (event) => {
    const box = event.target;
    if (!box.matches?.("input[data-all]")) return;
    box.closest("table").querySelectorAll("tbody input[type=checkbox]").forEach((one) => { one.checked = box.checked; });
  });

  const typing = () => /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
  const rows = () => [...document.querySelectorAll("main tbody tr a:first-of-type")];
  const move = (step) => {
    const all = rows(), at = all.indexOf(document.activeElement);
    all[Math.max(0, Math.min(all.length - 1, at + step))]?.focus();
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && typing()) document.activeElement.blur();
    if (typing() || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { event.preventDefault(); document.getElementById("q").focus(); }
    else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "x") document.activeElement?.closest("tr")?.querySelector("input[type=checkbox]")?.click();
  });

  page.addEventListener("htmx:after:swap", tellTimes);
  tellTimes();
  start();
})();
