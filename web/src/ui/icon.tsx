/** The page's icons: strokes on a grid of 20. */

const PATHS = {
  plus: "M10 4v12M4 10h12",
  send: "M10 16V4M5 9l5-5 5 5",
  stop: "M6 6h8v8H6z",
  attach: "M14.500 9.500l-5 5a3 3 0 0 1-4.300-4.300l6-6a2 2 0 0 1 2.900 2.900l-6 6a1 1 0 0 1-1.400-1.400l5-5",
  copy: "M7 7V4h9v9h-3M4 7h9v9H4z",
  check: "M4 10.500l4 4 8-9",
  edit: "M4 16l1-4 8.500-8.500 3 3L8 15z",
  again: "M15.500 8A6 6 0 1 0 16 11M16 4v4h-4",
  bin: "M4 6h12M8 6V4h4v2M6 6l.7 10h6.600L14 6",
  left: "M12 5l-5 5 5 5",
  right: "M8 5l5 5-5 5",
  down: "M10 4v12M5 11l5 5 5-5",
  close: "M5 5l10 10M15 5L5 15",
  menu: "M3 6h14M3 10h14M3 14h14",
  sliders: "M4 6h7M15 6h1M4 14h1M9 14h7M13 4v4M7 12v4",
  export: "M10 12V3M6 7l4-4 4 4M4 12v4h12v-4",
  chat: "M4 4h12v9H9l-4 3v-3H4z",
  monitor: "M3 12h3l2-7 4 10 2-5h3",
  connect: "M7 13l6-6M8 6l2-2a3 3 0 0 1 5 5l-2 2M12 14l-2 2a3 3 0 0 1-5-5l2-2",
  settings: "M4 7h3M11 7h5M4 13h6M14 13h2M9 5v4M12 11v4",
};

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 20 20" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

/** Three boxes and their lid. */
export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <path class="lid" d="M1 10V7.500L4 4h24l3 3.500V10z" />
      <path class="body" d="M2 11h28v5H2zM2 17h28v5H2zM2 23h28v4l-1.500 1.500h-25L2 27z" />
      <path class="rim" d="M1 8.800h30V10H1zM2 11h28v1H2zM2 17h28v1H2zM2 23h28v1H2z" />
    </svg>
  );
}
