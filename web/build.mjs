// Bundles the page: one script, one style sheet and the document, as they ship in the package.
import { build } from "esbuild";
import { copyFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "../src/levada/watch/page");

await build({
  entryPoints: { page: join(here, "src/main.ts") },
  outdir: out,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  legalComments: "inline",
});
copyFileSync(join(here, "src/index.html"), join(out, "index.html"));
