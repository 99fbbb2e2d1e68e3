// Images in messages, against the scripted model, of which girih-8b reads images and girih-1b does not.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { accessibilityFaults, picture, replied } from './browser.js';
import { button, lastReply, message, mock, pageTest, text } from './page-test.js';

const FILE = new URL('../../tests/images/rgb.png', import.meta.url).pathname;
const URL_OF_FILE = `data:image/png;base64,${readFileSync(FILE).toString('base64')}`;

const form = (page) => page.locator('form.composer');
const drawing = (scope, name) => scope.getByRole('img', { name: `Image ${name}`, exact: true });

async function choose(page, files) {
  const [chooser] = await Promise.all([page.waitForEvent('filechooser'), button(page, 'Add images').click()]);
  await chooser.setFiles(files);
}

/** Sends an event of this kind with a file to the field, as a paste or a drop is. Returns whether the page took it. */
function give(page, kind, file) {
  return page.evaluate(
    ([kind, { name, type, base64, plain }]) => {
      const data = new DataTransfer();
      const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
      data.items.add(new File([bytes], name, { type }));
      if (plain) data.setData('text/plain', plain);
      const options = { bubbles: true, cancelable: true };
      const event = kind === 'paste' ? new ClipboardEvent('paste', { ...options, clipboardData: data }) : new DragEvent(kind, { ...options, dataTransfer: data });
      return !document.getElementById('message').dispatchEvent(event);
    },
    [kind, file],
  );
}

const pasted = { name: 'image.png', type: 'image/png', base64: URL_OF_FILE.split(',')[1] };

/** A BMP of one colour: rows of three bytes a pixel, which are large and made quickly. */
function bmp(width, height) {
  const row = Math.ceil((width * 3) / 4) * 4;
  const bytes = Buffer.alloc(54 + row * height, 0x60);
  bytes.write('BM', 0, 'latin1');
  bytes.writeUInt32LE(bytes.length, 2);
  [0, 54, 40, width, height].forEach((value, at) => bytes.writeUInt32LE(value, 6 + 4 * at));
  bytes.writeUInt16LE(1, 26);
  bytes.writeUInt16LE(24, 28);
  [0, row * height, 2835, 2835, 0, 0].forEach((value, at) => bytes.writeUInt32LE(value, 30 + 4 * at));
  return bytes;
}

/** The colour in the middle of a drawing. */
const middle = (locator) =>
  locator.evaluate((canvas) => [...canvas.getContext('2d').getImageData(canvas.width >> 1, canvas.height >> 1, 1, 1).data]);

pageTest('images are chosen, pasted and dragged in, seen before they are sent, and removed', async (page) => {
  await choose(page, [FILE]);
  await drawing(form(page), 'rgb.png').waitFor();
  assert.ok(await give(page, 'paste', pasted));
  assert.ok(await give(page, 'dragover', pasted));
  assert.ok(await give(page, 'drop', { ...pasted, name: 'dropped.png' }));
  for (const name of ['rgb.png', 'image.png', 'dropped.png']) await drawing(form(page), name).and(page.locator('[data-drawn]')).waitFor();
  assert.equal((await middle(drawing(form(page), 'rgb.png')))[3], 255, 'it is drawn');
  await picture(page, 'images');
  assert.deepEqual(await accessibilityFaults(page), []);
  await button(page, 'Remove image.png').press('Enter');
  assert.equal(await form(page).getByRole('listitem').count(), 2);
  assert.equal(await page.evaluate(() => document.activeElement.id), 'message');

  await message(page).fill('What is this?');
  await page.keyboard.press('Enter');
  await replied(page);
  const part = { type: 'image_url', image_url: { url: URL_OF_FILE } };
  const content = [part, part, { type: 'text', text: 'What is this?' }];
  assert.deepEqual(mock.requests.at(-1).messages, [{ role: 'user', content }]);
  assert.match(await text(lastReply(page)), /You said: IMAGE IMAGE What is this\?/);
  assert.equal(await form(page).getByRole('listitem').count(), 0);
  await drawing(page.locator('article.user'), 'dropped.png').and(page.locator('[data-drawn]')).waitFor();
  assert.deepEqual(await accessibilityFaults(page), []);

  await choose(page, [FILE]);
  await button(form(page), 'Send').click(); // an image needs no text
  await replied(page);
  assert.deepEqual(mock.requests.at(-1).messages.map(({ content }) => content), [content, 'You said: IMAGE IMAGE What is this? (message 1, seed none)', [part]]);
});

pageTest('images stay with their conversation, its branches and its file', async (page) => {
  await choose(page, [FILE]);
  await message(page).fill('short');
  await button(form(page), 'Send').click(); // waits until the image is read; Enter would do nothing before
  await replied(page);
  await lastReply(page).getByText('Continue is not possible, because the conversation has images.').waitFor();
  await page.reload();
  await drawing(page.locator('article.user'), 'rgb.png').and(page.locator('[data-drawn]')).waitFor();
  await button(page, 'Edit your message').click();
  await page.getByRole('textbox', { name: 'Edit your message' }).fill('changed');
  await page.keyboard.press('Enter');
  await replied(page);
  const sent = [{ type: 'image_url', image_url: { url: URL_OF_FILE } }, { type: 'text', text: 'changed' }];
  assert.deepEqual(mock.requests.at(-1).messages[0].content, sent);

  const [file] = await Promise.all([page.waitForEvent('download'), button(page, 'Export all').click()]);
  const path = await file.path();
  assert.equal(JSON.parse(readFileSync(path, 'utf8'))[0].messages[0].images[0].url, URL_OF_FILE);
  await button(page, 'Delete your message').click();
  await button(page.getByRole('dialog'), 'Delete').click();
  await drawing(page.locator('article.user'), 'rgb.png').and(page.locator('[data-drawn]')).waitFor(); // of the other branch
  await button(page, 'Delete your message').click();
  await button(page.getByRole('dialog'), 'Delete').click();
  const kept = () =>
    page.evaluate(async () => {
      const asked = (request) => new Promise((resolve) => (request.onsuccess = () => resolve(request.result)));
      const database = await asked(indexedDB.open('girih'));
      const count = await asked(database.transaction('images').objectStore('images').count());
      database.close();
      return count;
    });
  for (let waits = 0; waits < 50 && (await kept()) > 0; waits++) await page.waitForTimeout(50);
  assert.equal(await kept(), 0, 'the bytes go with the last message that has them');

  const [chooser] = await Promise.all([page.waitForEvent('filechooser'), button(page, 'Import').click()]);
  await chooser.setFiles(path);
  await page.locator('article.user').waitFor();
  await page.reload();
  await message(page).fill('again');
  await page.keyboard.press('Enter');
  await replied(page);
  assert.deepEqual(mock.requests.at(-1).messages[0].content, sent);
});

pageTest('a picture that is too large is scaled down, and the page says so', async (page) => {
  await choose(page, [{ name: 'large.bmp', mimeType: 'image/bmp', buffer: bmp(5000, 2500) }]);
  const sentence = 'Sent as a JPEG of 4898 × 2449, as the file is too large (37.5 MB, 5000 × 2500).';
  await form(page).getByText(sentence).waitFor();
  await button(form(page), 'Send').click();
  await replied(page);
  await page.locator('article.user').getByText(sentence).waitFor();
  const { url } = mock.requests.at(-1).messages[0].content[0].image_url;
  assert.match(url, /^data:image\/jpeg;base64,\/9j\//);
  assert.ok(url.length < 16_000_000);
});

pageTest('what is no image is said', async (page) => {
  await choose(page, [
    { name: 'notes.txt', mimeType: 'text/plain', buffer: Buffer.from('x') },
    { name: 'broken.png', mimeType: 'image/png', buffer: Buffer.from('\x89PNG') },
  ]);
  await form(page).getByText('notes.txt is no PNG, JPEG, WebP, GIF or BMP file.').waitFor();
  await form(page).getByText('broken.png cannot be read as an image.').waitFor();
  assert.deepEqual(await accessibilityFaults(page), []);
  assert.ok(await button(page, 'Send').isDisabled());
  await choose(page, Array(17).fill({ name: 'dot.png', mimeType: 'image/png', buffer: readFileSync(FILE) }));
  await form(page).getByText('A request has at most 16 images; dot.png was left out.').waitFor();
  assert.equal(await form(page).getByRole('listitem').count(), 16);
  assert.ok(!(await give(page, 'paste', { ...pasted, plain: 'a table' })), 'a copied table is pasted as text');
});

pageTest('the images of the whole conversation count', async (page) => {
  const dots = (count) => Array(count).fill({ name: 'dot.png', mimeType: 'image/png', buffer: readFileSync(FILE) });
  await choose(page, dots(15));
  await button(form(page), 'Send').click();
  await replied(page);
  await choose(page, dots(2));
  const sentence = 'A request has at most 16 images; dot.png was left out. Delete messages that have images: the conversation has 15.';
  await form(page).getByText(sentence).waitFor();
  await button(form(page), 'Send').click();
  await replied(page);
  assert.equal(mock.requests.at(-1).messages.flatMap(({ content }) => content).filter(({ type }) => type === 'image_url').length, 16);
  await page.getByRole('button', { name: 'Delete your message' }).first().click();
  await button(page.getByRole('dialog'), 'Delete').click();
  const large = [3, 4, 5, 6].map((number) => ({ name: `large${number}.bmp`, mimeType: 'image/bmp', buffer: bmp(1990, 2000) }));
  await choose(page, large);
  await form(page).getByText('The images of the conversation would have 47.8 MB, and those of a request at most 45.0 MB.').waitFor();
  assert.ok(await button(form(page), 'Send').isDisabled());
  await button(page, 'Remove large6.bmp').click();
  assert.ok(await button(form(page), 'Send').isEnabled());
});

pageTest('an exported file says which images the browser has lost', async (page) => {
  await choose(page, [FILE, FILE]);
  await button(form(page), 'Send').click();
  await replied(page);
  await page.reload();
  await drawing(page.locator('article.user'), 'rgb.png').first().and(page.locator('[data-drawn]')).waitFor();
  await page.evaluate(async () => {
    const asked = (request) => new Promise((resolve) => (request.onsuccess = () => resolve(request.result)));
    const database = await asked(indexedDB.open('girih'));
    await asked(database.transaction('images', 'readwrite').objectStore('images').clear());
    database.close();
  });
  const [file] = await Promise.all([page.waitForEvent('download'), button(page, 'Export all').click()]);
  const [conversation] = JSON.parse(readFileSync(await file.path(), 'utf8'));
  const sentence = '2 images are left out: the browser no longer has them.';
  assert.deepEqual([conversation.note, conversation.messages[0].images], [sentence, []]);
  await page.getByRole('alert').getByText(`girih-conversations.json: ${sentence}`).waitFor();
});

pageTest('a model that reads no images is named', async (page) => {
  await choose(page, [FILE]);
  await page.getByLabel('Model', { exact: true }).selectOption('girih-1b');
  await form(page).getByText('girih-1b reads no images. Remove them, or choose another model.').waitFor();
  assert.equal(await button(page, 'Add images').count(), 0);
  const before = mock.requests.length;
  await message(page).press('Enter');
  assert.equal(mock.requests.length, before);
  await button(page, 'Remove rgb.png').click();
  assert.ok(await give(page, 'drop', pasted), 'the page stays');
  await form(page).getByText('girih-1b reads no images.', { exact: true }).waitFor();
  await message(page).fill('text');
  await message(page).press('Enter');
  await replied(page);
  assert.equal(mock.requests.at(-1).messages[0].content, 'text');
  assert.equal(await form(page).getByText('girih-1b reads no images.').count(), 0);
});
