/** Dark, light, or what the system says. */

import { effect, signal } from "@preact/signals";
import { load, save } from "./storage";

export type Theme = "system" | "light" | "dark";
export const THEMES: Theme[] = ["system", "light", "dark"];

export const theme = signal<Theme>(load<Theme>("theme", "system"));

effect(() => {
  const chosen = theme.value;
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  save("theme", chosen);
});
