// Builds the page into files with fixed names, which `crates/serve` embeds.
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

export default defineConfig({
  base: './', // the page also works under a path of a proxy
  plugins: [svelte()],
  build: {
    outDir: '../crates/serve/page',
    emptyOutDir: true,
    target: 'es2022',
    cssTarget: 'esnext', // keeps light-dark() as it is
    modulePreload: false,
    assetsInlineLimit: 0, // the content security policy allows no data: addresses
    reportCompressedSize: false,
    license: { fileName: 'LICENSES.txt' },
    rolldownOptions: {
      output: { entryFileNames: 'app.js', assetFileNames: 'app[extname]', codeSplitting: false },
    },
  },
});
