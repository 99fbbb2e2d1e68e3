// The page as girih serves it, with the built-in model. `GIRIH_BIN` names the program.
import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { accessibilityFaults, button, openPage, picture, replied, say, startBrowser } from './browser.js';
import { GIRIH, options, serve } from './girih-server.js';

/** A folder with the files of the built-in model, and `template` as its chat template. */
function modelFolder(template) {
  const folder = mkdtempSync(join(tmpdir(), 'girih-model-'));
  cpSync(new URL('../../crates/girih/assets/stories260k', import.meta.url), folder, { recursive: true });
  if (template) writeFileSync(join(folder, 'chat_template.jinja'), template);
  return folder;
}

/** A folder of the committed model that reads images, with the tokenizer of the built-in one, whose last tokens become those of images. */
function seeingFolder() {
  const folder = mkdtempSync(join(tmpdir(), 'girih-seeing-'));
  cpSync(new URL('../../tests/fixtures/gemma3_vision', import.meta.url), folder, { recursive: true });
  const tokenizer = JSON.parse(readFileSync(new URL('../../crates/girih/assets/stories260k/tokenizer.json', import.meta.url), 'utf8'));
  const { model, added_tokens: added } = tokenizer;
  model.vocab = Object.fromEntries(Object.entries(model.vocab).filter(([, id]) => id < 509));
  ['<start_of_image>', '<end_of_image>', '<image_soft_token>'].forEach((content, at) => {
    model.vocab[content] = 509 + at;
    added.push({ ...added[0], id: 509 + at, content, special: true });
  });
  writeFileSync(join(folder, 'tokenizer.json'), JSON.stringify(tokenizer));
  const part = "{% if part.type == 'image' %}<start_of_image>{% else %}{{ part.text }}{% endif %}";
  const content = `{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}${part}{% endfor %}{% endif %}`;
  writeFileSync(join(folder, 'chat_template.jinja'), `<s>{% for message in messages %}${content}{% endfor %}`);
  return folder;
}

let browser;
let girih;
before(async () => {
  if (!GIRIH) return;
  [browser, girih] = await Promise.all([startBrowser(), serve('stories260k')]);
});
after(async () => {
  await browser?.close();
  girih?.end();
});

const reply = (page) => page.locator('article.reply').last();

test('a conversation with the built-in model', options, async () => {
  const page = await openPage(browser, girih.url);
  await page.getByRole('button', { name: 'Settings', exact: true }).click();
  await page.getByLabel('Max tokens').fill('40');
  await page.getByLabel('Seed').fill('7');
  await say(page, 'Once upon a time');
  const text = () => reply(page).locator('.markdown').innerText();
  const first = await text();
  assert.ok(first.length > 20, first);
  assert.match(await reply(page).locator('.counters').innerText(), /prompt \d+.* generated 40 ·( [\d.,]+ tokens\/s ·)? first token [\d.]+ s/);
  assert.match(await reply(page).innerText(), /ended at the limit of tokens/);
  await page.getByRole('button', { name: 'Retry the reply' }).click();
  await replied(page);
  assert.equal(await text(), first, 'a seed gives the same reply');
  assert.deepEqual(await accessibilityFaults(page), []);
  await picture(page, 'girih');

  await page.getByLabel('Format').selectOption('schema');
  await page.getByLabel('JSON schema').fill('{"type": "object", "properties": {"old": {"type": "boolean"}}, "required": ["old"], "additionalProperties": false}');
  await say(page, 'Is it old?');
  assert.match(await reply(page).locator('.json').innerText(), /^\{\n {2}"old": (true|false)\n\}$/);

  await page.getByLabel('Temperature').fill('0.00001');
  await page.getByLabel('Stop texts').fill('x'.repeat(300));
  await say(page, 'Refuse this');
  assert.match(await reply(page).locator('.error').innerText(), /stop has 300 bytes|256/);
  assert.deepEqual(page.faults, []);
  await page.context().close();
});

test('files are sent once, and their headers are strict', options, async () => {
  for (const path of ['', 'app.js', 'app.css', 'icon.svg', 'favicon.ico', 'LICENSES.txt']) {
    const response = await fetch(girih.url + path);
    assert.equal(response.status, 200);
    assert.match(response.headers.get('content-security-policy'), /frame-ancestors 'none'/);
    const again = await fetch(girih.url + path, { headers: { 'if-none-match': response.headers.get('etag') } });
    assert.equal(again.status, 304);
  }
});

test('a key is asked for', options, async () => {
  const file = join(mkdtempSync(join(tmpdir(), 'girih-page-')), 'keys');
  writeFileSync(file, 'sesame-sesame-sesame-sesame-sesame\n', { mode: 0o600 });
  const guarded = await serve('stories260k', '--api-keys', file);
  try {
    const page = await openPage(browser, guarded.url);
    await page.getByLabel('Key', { exact: true }).fill('sesame-sesame-sesame-sesame-sesame');
    await page.keyboard.press('Enter');
    await page.getByRole('dialog').waitFor({ state: 'hidden' });
    await say(page, 'Once upon a time');
    assert.ok((await reply(page).locator('.markdown').innerText()).length > 20);
    assert.deepEqual(page.faults, []);
  } finally {
    guarded.end();
  }
});

test('a reply that was cut goes on as if it had not been', options, async () => {
  const page = await openPage(browser, girih.url);
  await button(page, 'Settings').click();
  const tellStory = async (tokens) => {
    await button(page, 'New conversation').click();
    await page.getByLabel('Temperature').fill('0');
    await page.getByLabel('Max tokens').fill(String(tokens));
    await say(page, 'Once upon a time');
  };
  const text = async () => (await reply(page).locator('.markdown').evaluate((shown) => shown.textContent)).trim();
  await tellStory(60);
  const whole = await text();
  await tellStory(20);
  assert.ok(whole.startsWith(await text()) && (await text()).length < whole.length);
  for (const end of [40, 60]) {
    await button(reply(page), 'Continue the reply').click();
    await replied(page);
    assert.match(await reply(page).locator('.counters').innerText(), new RegExp(`generated ${end} ·`));
  }
  assert.equal(await text(), whole);
  assert.deepEqual(page.faults, []);
  await page.context().close();
});

test('a model without a chat template is explained in words for this page', options, async () => {
  const folder = modelFolder(null);
  const server = await serve(folder);
  try {
    const page = await openPage(browser, server.url);
    await say(page, 'Hello');
    assert.match(await reply(page).locator('.error').innerText(), /^This model has no chat template, so it cannot reply to messages/);
  } finally {
    server.end();
    rmSync(folder, { recursive: true });
  }
});

/** Refuses what Gemma's template refuses, in its words. */
const ALTERNATING = `{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}{{ message.content }} {% endfor %}`;

test('a conversation goes on after a failed reply, with a template in which roles alternate', options, async () => {
  const folder = modelFolder(ALTERNATING);
  const server = await serve(folder);
  try {
    const page = await openPage(browser, server.url);
    await button(page, 'Settings').click();
    await page.getByLabel('Max tokens').fill('8');
    await page.getByLabel('Stop texts').fill('x'.repeat(300));
    await say(page, 'Refuse this');
    await reply(page).locator('.error').waitFor();
    await page.getByLabel('Stop texts').fill('');
    for (const text of ['Once', 'there', 'was']) {
      await say(page, text);
      assert.match(await reply(page).innerText(), /ended at the limit of tokens/);
    }
    await page.locator('article.reply').first().getByText('Later requests leave out this reply and the message above it.').waitFor();
    assert.deepEqual(page.faults, []);
  } finally {
    server.end();
    rmSync(folder, { recursive: true });
  }
});

test('a model that reads images gets what was chosen', options, async () => {
  const folder = seeingFolder();
  const server = await serve(folder);
  try {
    const page = await openPage(browser, server.url);
    await button(page, 'Settings').click();
    await page.getByLabel('Max tokens').fill('8');
    await page.getByLabel('Temperature').fill('0');
    /** The counted tokens of the prompt and the reply to this question, about an image if it has a name. */
    const ask = async (name) => {
      await button(page, 'New conversation').click();
      if (name) {
        const [chooser] = await Promise.all([page.waitForEvent('filechooser'), button(page, 'Add images').click()]);
        await chooser.setFiles(new URL(`../../tests/images/${name}`, import.meta.url).pathname);
        await page.locator('form.composer canvas[data-drawn]').waitFor();
      }
      await say(page, 'Once upon a time');
      const counters = await reply(page).locator('.counters').innerText();
      return [Number(counters.match(/prompt (\d+)/)[1]), await reply(page).locator('.markdown').innerText()];
    };
    const [plain] = await ask(null);
    const [first, text] = await ask('rgb.png');
    const [second, other] = await ask('grey.jpg');
    assert.ok(first > plain && first === second, `${plain}, ${first}, ${second} tokens`);
    assert.notEqual(text, other);
    assert.deepEqual(page.faults, []);
    await page.context().close();
  } finally {
    server.end();
    rmSync(folder, { recursive: true });
  }
});

test('a model that reads no images has no button for them', options, async () => {
  const page = await openPage(browser, girih.url);
  await page.getByText('512 tokens of context').waitFor();
  assert.equal(await button(page, 'Add images').count(), 0);
  await page.context().close();
});
