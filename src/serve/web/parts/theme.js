// Light, dark, or as the system says; theme.js in the head of the page applies the choice before anything is drawn.
import { store } from "./store.js";

const CHOICES = [
  { value: null, title: "as the system", icon: "system" },
  { value: "light", title: "light", icon: "sun" },
  { value: "dark", title: "dark", icon: "moon" },
];

const chosen = () =>
  CHOICES.find((choice) => choice.value === (document.documentElement.dataset.theme ?? null)) ?? CHOICES[0];

/** The present choice: `{ value, title, icon }`. */
export const theme = store(chosen());

/** Goes to the next choice and remembers it. */
export function nextTheme() {
  const next = CHOICES[(CHOICES.findIndex(({ value }) => value === theme.get().value) + 1) % CHOICES.length];
  if (next.value) document.documentElement.dataset.theme = next.value;
  else delete document.documentElement.dataset.theme;
  try {
    if (next.value) localStorage.setItem("theme", next.value);
    else localStorage.removeItem("theme");
  } catch {
    // It then holds until the page is closed.
  }
  theme.set(next);
}

// Charts are drawn with colours that they read once, so a change of the system's preference is told as well.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme.set({ ...chosen() }));

let probe;

/** The colour that a name of style.css stands for at present, for canvases. */
export function colour(name) {
  if (!probe) {
    probe = document.createElement("span");
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
