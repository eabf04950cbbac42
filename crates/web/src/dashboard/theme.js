// Runs before the first paint, so that a chosen theme does not flash up in the other one.
"use strict";
(() => {
  const KEY = "evenkeel-theme";
  const THEMES = ["system", "light", "dark"];

  // Without storage (a private window, a policy) the theme is simply not kept.
  const stored = (() => {
    try { return localStorage.getItem(KEY); } catch { return null; }
  })();

  const theme = {
    now: "system",
    set(name) {
      this.now = THEMES.includes(name) ? name : "system";
      document.documentElement.dataset.theme = this.now;
      try { localStorage.setItem(KEY, this.now); } catch { /* not kept */ }
    },
    next() {
      this.set(THEMES[(THEMES.indexOf(this.now) + 1) % THEMES.length]);
    },
  };
  theme.set(stored);
  window.evenkeelTheme = theme;
})();
