// How the page looks, and what axe says of it: light, dark, on a phone.
import assert from 'node:assert/strict';
import { accessibilityFaults, picture, replied } from './browser.js';
import { button, lastReply, message, pageTest } from './page-test.js';

pageTest('a panel that closes gives the focus back', async (page) => {
  const focused = () => page.evaluate(() => document.activeElement.id);
  await button(page, 'Settings').click();
  assert.ok(await page.locator('aside').evaluate((panel) => panel.contains(document.activeElement)));
  await page.keyboard.press('Escape');
  assert.equal(await focused(), 'open-settings');
  await button(page, 'Conversations').click();
  assert.ok(await page.getByRole('navigation').evaluate((panel) => panel.contains(document.activeElement)));
  await page.keyboard.press('Escape');
  assert.equal(await focused(), 'open-list');
}, { options: { viewport: { width: 700, height: 600 } } });

for (const [name, options] of [
  ['light', { colorScheme: 'light' }],
  ['dark', { colorScheme: 'dark' }],
  ['phone', { colorScheme: 'light', viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true }],
  ['phone-dark', { colorScheme: 'dark', viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true, reducedMotion: 'reduce' }],
]) {
  pageTest(`axe finds nothing: ${name}`, async (page) => {
    const check = async (state) => {
      await picture(page, `${name}-${state}`);
      assert.deepEqual(await accessibilityFaults(page), [], state);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(wide <= 0, `${state} is ${wide} pixels too wide`);
    };
    await check('empty');
    await message(page).fill('Show me markdown');
    await button(page, 'Send').click();
    await replied(page);
    await lastReply(page).getByText('for the decagon').waitFor();
    await check('end');
    await button(page, 'Edit the reply').click();
    await check('editor');
    await page.keyboard.press('Escape');
    await button(page, 'Delete your message').click();
    await check('question');
    await page.keyboard.press('Escape');
    await page.getByRole('dialog').waitFor({ state: 'hidden' });
    await page.locator('.thread').evaluate((thread) => (thread.scrollTop = 0));
    await page.getByRole('button', { name: 'Newest' }).waitFor();
    await check('start');
    await button(page, 'Settings').click();
    await check('settings');
    await page.getByText('Tools, for developers').click();
    await page.getByLabel('Tools, as JSON').fill('{"name": "get_weather"}');
    await check('tools');
    await page.keyboard.press('Escape');
    if (options.isMobile) {
      await button(page, 'Close the settings').waitFor({ state: 'hidden' });
      await button(page, 'Conversations').click();
      await check('list');
      await page.keyboard.press('Escape');
    } else {
      await button(page, 'Close the settings').click();
    }
    await message(page).fill('weather');
    await button(page, 'Send').click();
    await replied(page);
    await page.getByText('Type the results yourself').click();
    await page.getByRole('textbox', { name: 'Result of get_time' }).waitFor();
    await check('calls');
    await message(page).fill('slow');
    await button(page, 'Send').click();
    await lastReply(page).getByText('word word word').waitFor();
    assert.equal(await page.getByRole('button', { name: 'Newest' }).count(), 0, 'the view follows the reply');
    await check('streaming');
    await button(page, 'Stop').click();
  }, { options });
}

pageTest('the appearance can be chosen', async (page) => {
  const ground = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const light = await ground();
  await button(page, 'Settings').click();
  await page.getByLabel('Appearance').selectOption('Dark');
  const dark = await ground();
  assert.notEqual(dark, light);
  await page.reload();
  await message(page).waitFor();
  assert.equal(await ground(), dark);
}, { options: { colorScheme: 'light' } });
