import { defineConfig } from "vite";

const server = "http://127.0.0.1:8080"; // while developing: `jubako serve`, or dev/server.mjs

export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/jubako/serve/page",
    emptyOutDir: true,
    target: "es2022",
    cssTarget: ["chrome123", "firefox120", "safari17.5"], // the first with light-dark()
    assetsInlineLimit: 0, // the page's policy allows no data: scripts or fonts
    modulePreload: false, // one file: nothing to preload, and no inline helper
  },
  server: { proxy: { "/v1": server, "/health": server } },
});
