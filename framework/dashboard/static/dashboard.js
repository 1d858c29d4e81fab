// Refresh the page when its stream says so, show times in the zone of the browser, and serve the keyboard.
(() => {
  "use strict";
  const page = document.getElementById("page");
  const live = document.getElementById("live");
  const root = document.documentElement;
  const POLL_MS = 5000, YEAR_S = 31536000;
  let stream = null, timer = null;

  const kept = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
  const keep = (name, value) => { try { localStorage.setItem(name, value); } catch { /* not stored */ } };

  // What is selected or being written stays.
  const typing = () => /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "") && document.activeElement.type !== "checkbox";
  const busy = () => page.querySelector("td input:checked") || (typing() && page.contains(document.activeElement));
  const refresh = () => { if (!busy()) htmx.trigger(page, "aw:changed"); };
  const stop = () => { stream?.close(); stream = null; clearTimeout(timer); timer = null; };
  // The page says for how long its viewers share what was read: the more they are, the longer.
  const again = () => Math.max(POLL_MS, Number(document.getElementById("again")?.dataset.ms) || 0);
  const poll = () => { stop(); timer = setTimeout(() => { refresh(); poll(); }, again()); };
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
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    keep("aw-theme", root.dataset.theme);
  });

  document.getElementById("language")?.addEventListener("change", (event) => {
    const { value, dataset } = event.target;
    document.cookie = `aw_language=${value}; path=${dataset.path}; max-age=${YEAR_S}; samesite=strict`;
    location.reload();
  });

  // A time is shown as its age or as the time of day; its title has the exact time. All are in the zone of the viewer.
  const exact = new Intl.DateTimeFormat(root.lang, { dateStyle: "medium", timeStyle: "medium" });
  const ofDay = new Intl.DateTimeFormat(root.lang, { timeStyle: "medium" });
  const ofYear = new Intl.DateTimeFormat(root.lang, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
  const times = document.getElementById("times");
  const tellTimes = () => document.querySelectorAll("time[datetime]").forEach((one) => {
    const at = new Date(one.dateTime);
    if (Number.isNaN(at.getTime())) return;
    // After a refresh the text is the age again.
    if (one.textContent !== one.dataset.clock) one.dataset.age = one.textContent;
    one.title = exact.format(at);
    one.dataset.clock = (at.toDateString() === new Date().toDateString() ? ofDay : ofYear).format(at);
    const text = times.getAttribute("aria-pressed") === "true" ? one.dataset.clock : one.dataset.age;
    if (one.textContent !== text) one.textContent = text;
  });
  times.setAttribute("aria-pressed", String(kept("aw-times") === "clock"));
  times.addEventListener("click", () => {
    const on = times.getAttribute("aria-pressed") !== "true";
    times.setAttribute("aria-pressed", String(on));
    keep("aw-times", on ? "clock" : "age");
    tellTimes();
  });
  document.getElementById("zone").textContent = Intl.DateTimeFormat().resolvedOptions().timeZone;

  // The first box of a table selects all of its rows; the row of buttons says how many are selected.
  const boxes = (place) => [...place.querySelectorAll("tbody input[type=checkbox]")];
  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.type !== "checkbox") return;
    if (box.matches("[data-all]")) boxes(box.closest("table")).forEach((one) => { one.checked = box.checked; });
    const form = box.closest("form"), actions = form?.querySelector(".actions");
    if (!actions) return;
    const count = boxes(form).filter((one) => one.checked).length;
    if (count) actions.dataset.count = count; else delete actions.dataset.count;
  });

  // The row of the keyboard is the one with the focus.
  const rowOf = (one) => one?.closest?.("main tbody tr");
  const move = (step) => {
    const all = [...document.querySelectorAll("main tbody tr")].filter((one) => one.offsetParent && one.querySelector("a, input, summary"));
    // On a page with actions the rows are those that can be selected.
    const selectable = all.filter((one) => one.querySelector("input[type=checkbox]"));
    const rows = selectable.length ? selectable : all;
    const at = rows.indexOf(rowOf(document.activeElement));
    const next = rows[Math.max(0, Math.min(rows.length - 1, at + step))];
    (next?.querySelector("a") ?? next?.querySelector("input, summary"))?.focus();
  };

  // The palette: the pages of the menu that have the words, and the search for them.
  const palette = document.getElementById("palette"), words = document.getElementById("palette-text"), list = document.getElementById("palette-list");
  const entries = [...document.querySelectorAll("nav.menu a")].map((one) => ({ text: one.textContent, href: one.href }));
  let chosen = 0;
  const choose = (at) => {
    const all = [...list.children];
    chosen = (at + all.length) % all.length;
    all.forEach((one, place) => one.setAttribute("aria-selected", String(place === chosen)));
    words.setAttribute("aria-activedescendant", all[chosen].id);
    all[chosen].scrollIntoView({ block: "nearest" });
  };
  const fill = () => {
    const text = words.value.trim(), search = new URL(list.dataset.search, location.href);
    search.searchParams.set("q", text);
    const found = entries.filter((one) => one.text.toLowerCase().includes(text.toLowerCase()));
    if (text) found.push({ text: `${list.dataset.label}: ${text}`, href: search.href });
    list.replaceChildren(...found.map((one, at) => {
      const item = document.createElement("li");
      item.id = `palette-${at}`;
      item.setAttribute("role", "option");
      item.textContent = one.text;
      item.dataset.href = one.href;
      return item;
    }));
    choose(0);
  };
  const go = () => { location.href = list.children[chosen].dataset.href; };
  words.addEventListener("input", fill);
  words.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) { event.preventDefault(); choose(chosen + step); } else if (event.key === "Enter") { event.preventDefault(); go(); }
  });
  list.addEventListener("click", (event) => {
    const at = [...list.children].indexOf(event.target.closest("li"));
    if (at >= 0) { choose(at); go(); }
  });
  const openPalette = () => { words.value = ""; palette.showModal(); fill(); };
  const keys = document.getElementById("keys");
  document.getElementById("keys-open").addEventListener("click", () => keys.showModal());
  for (const dialog of [palette, keys]) dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

  const press = {
    "/": () => document.getElementById("q").focus(),
    "?": () => keys.showModal(),
    ".": () => live.click(),
    g: openPalette,
    t: () => times.click(),
    j: () => move(1),
    k: () => move(-1),
    x: () => rowOf(document.activeElement)?.querySelector("input[type=checkbox]")?.click(),
  };
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    if ((event.ctrlKey || event.metaKey) && event.key === "k") { event.preventDefault(); openPalette(); return; }
    if (event.key === "Escape" && typing()) document.activeElement.blur();
    if (typing() || event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(press, event.key)) return;
    event.preventDefault();
    press[event.key]();
  });

  page.addEventListener("htmx:after:swap", tellTimes);

  // A table that is wider than its frame is moved with the keyboard, too.
  const reachFrames = () => page.querySelectorAll(".scroll:not([role])").forEach((one) => {
    if (one.scrollWidth > one.clientWidth && ![...one.querySelectorAll("a, button, input, summary")].some((each) => each.offsetParent)) one.tabIndex = 0; else one.removeAttribute("tabindex");
  });
  reachFrames();
  page.addEventListener("htmx:after:swap", reachFrames);
  addEventListener("resize", reachFrames);
  tellTimes();
  start();
})();
