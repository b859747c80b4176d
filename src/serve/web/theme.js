// The choice between light and dark, before anything is drawn, so that a dark page does not flash white.
// Without a choice the system's preference holds.
(function () {
  "use strict";
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage can be forbidden; the system's preference holds then.
  }
})();
