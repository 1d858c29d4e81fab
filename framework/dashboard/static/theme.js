// Set the theme before the page is drawn. The choice stays in this browser.
(() => {
  "use strict";
  try {
    const theme = localStorage.getItem("aw-theme");
    if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  } catch { /* a browser without storage follows the system */ }
})();
