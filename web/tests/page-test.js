// A test with a page of its own, and short names for what tests look for.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { openPage, startBrowser } from './browser.js';
import { startMock } from './mock.js';

export { button } from './browser.js';

let browser;
export let mock;
before(async () => {
  browser = await startBrowser();
  mock = await startMock({ foreign: 'http://127.0.0.1:9' });
});
after(async () => {
  await browser.close();
  mock.close();
});

/**
 * Runs `work` with a page of its own, and asserts that the page did nothing that it must not. With
 * `server`, the options of a scripted model, the page has a server of its own, too.
 */
export function pageTest(name, work, { options = {}, server } = {}) {
  test(name, async () => {
    const used = server ? await startMock(server) : mock;
    const page = await openPage(browser, used.url, options);
    try {
      await work(page, used);
      assert.deepEqual(page.faults, []);
    } finally {
      await page.context().close();
      if (server) used.close();
    }
  });
}

export const message = (page) => page.getByRole('textbox', { name: 'Message', exact: true });
export const lastReply = (page) => page.locator('article.reply').last();
export const text = (locator) => locator.innerText();
