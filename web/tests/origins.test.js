// Pages of other origins in a browser: which requests of theirs girih answers. `GIRIH_BIN` names the program.
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { startBrowser } from './browser.js';
import { GIRIH, options, serve } from './girih-server.js';

const KEY = 'sesame-sesame-sesame-sesame-sesame';
const EMPTY = '<!doctype html><title>Another page</title>';

let browser;
let site;
let origin;
before(async () => {
  if (!GIRIH) return;
  site = createServer((_, response) => response.setHeader('content-type', 'text/html').end(EMPTY));
  await new Promise((listening) => site.listen(0, '127.0.0.1', listening));
  origin = `http://127.0.0.1:${site.address().port}`;
  browser = await startBrowser();
});
after(async () => {
  await browser?.close();
  site?.close();
});

/** What a page at `place` gets for a request, as its script sees it. */
async function asked(place, url, request = {}) {
  const page = await browser.newPage();
  try {
    await page.goto(place);
    return await page.evaluate(
      async ([url, request]) => {
        try {
          const response = await fetch(url, request);
          const { status, headers } = response;
          return { status, id: headers.get('x-request-id'), text: await response.text() };
        } catch (error) {
          return { failed: error.name };
        }
      },
      [url, request],
    );
  } finally {
    await page.close();
  }
}

/** A request as clients of OpenAI's API send it from a page. */
const chat = (more = {}, headers = {}) => ({
  method: 'POST',
  headers: { 'content-type': 'application/json', 'x-stainless-lang': 'js', ...headers },
  body: JSON.stringify({ messages: [{ role: 'user', content: 'Once upon a time' }], max_tokens: 4, ...more }),
});

/** How many requests the server has counted whose line in /metrics has these words. */
async function counted(server, ...words) {
  const text = await (await fetch(`${server.url}metrics`)).text();
  const lines = text.split('\n').filter((line) => !line.startsWith('#') && words.every((word) => line.includes(word)));
  return lines.reduce((sum, line) => sum + Number(line.split(' ').at(-1)), 0);
}

test('a page of another origin is refused', options, async () => {
  const server = await serve('stories260k', '--allowed-origin', 'http://localhost:1');
  try {
    const url = `${server.url}v1/chat/completions`;
    for (const place of [origin, origin.replace('127.0.0.1', 'localhost')]) {
      assert.deepEqual(await asked(place, url, chat()), { failed: 'TypeError' });
      assert.deepEqual(await asked(place, `${server.url}v1/models`), { failed: 'TypeError' });
    }
    assert.equal(await counted(server, 'girih_refusals_total', 'code="origin_not_allowed"'), 4);
    assert.equal(await counted(server, 'girih_requests_total'), 0, 'no reply was made');
  } finally {
    server.end();
  }
});

test('a page of an allowed origin may call, and read headers, streams and errors', options, async () => {
  const server = await serve('stories260k', '--allowed-origin', origin);
  try {
    const url = `${server.url}v1/chat/completions`;
    const reply = await asked(origin, url, chat());
    assert.equal(reply.status, 200, JSON.stringify(reply));
    assert.match(reply.id, /^[0-9a-f]{32}$/);
    assert.equal(JSON.parse(reply.text).usage.completion_tokens, 4);
    assert.ok((await counted(server, 'girih_http_requests_total', 'method="OPTIONS"', 'status="204"')) >= 1);
    assert.match((await asked(origin, url, chat({ stream: true }))).text, /data: \[DONE\]\n\n$/);
    const wrong = await asked(origin, url, chat({ max_tokens: 'many' }));
    assert.equal(wrong.status, 400);
    assert.ok(JSON.parse(wrong.text).error.message);
    assert.equal((await asked(origin, `${server.url}v1/models`)).status, 200);
    // Another name of the same machine is another origin.
    assert.deepEqual(await asked(origin.replace('127.0.0.1', 'localhost'), url, chat()), { failed: 'TypeError' });
    const token = await asked(origin, `${server.url}page-token`);
    assert.equal(token.status, 403);
    assert.equal(JSON.parse(token.text).error.code, 'page_token_invalid');
  } finally {
    server.end();
  }
});

test('a link in another page opens the chat page', options, async () => {
  const server = await serve('stories260k');
  const page = await browser.newPage();
  try {
    await page.goto(origin.replace('127.0.0.1', 'localhost'));
    await page.evaluate((url) => document.body.append(Object.assign(document.createElement('a'), { href: url, textContent: 'Chat' })), server.url);
    await page.getByText('Chat').click();
    await page.getByRole('textbox', { name: 'Message' }).waitFor();
  } finally {
    await page.close();
    server.end();
  }
});

test('with * every page may call that has a key, also one in a file', options, async () => {
  const folder = mkdtempSync(join(tmpdir(), 'girih-origins-'));
  const [keys, file] = [join(folder, 'keys'), join(folder, 'page.html')];
  writeFileSync(keys, `${KEY}\n`, { mode: 0o600 });
  writeFileSync(file, EMPTY);
  const server = await serve('stories260k', '--allowed-origin', '*', '--api-keys', keys);
  try {
    const url = `${server.url}v1/chat/completions`;
    for (const place of [origin, `file://${file}`]) {
      assert.equal((await asked(place, url, chat())).status, 401, place);
      const reply = await asked(place, url, chat({}, { authorization: `Bearer ${KEY}` }));
      assert.equal(reply.status, 200, JSON.stringify(reply));
    }
  } finally {
    server.end();
  }
});
