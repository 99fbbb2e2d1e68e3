// What a user does, in a browser, against the scripted model.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { accessibilityFaults, picture, replied, say } from './browser.js';
import { codes } from './mock.js';
import { button, lastReply, message, mock, pageTest, text } from './page-test.js';

pageTest('a conversation by keyboard alone', async (page) => {
  const press = async (...keys) => {
    for (const key of keys) await page.keyboard.press(key);
  };
  /** Moves the focus forward to the control with this name. */
  const reach = async (name) => {
    for (let count = 0; count < 60; count++) {
      const found = await page.evaluate(() => {
        const at = document.activeElement;
        return at.getAttribute('aria-label') ?? at.labels?.[0]?.innerText.trim() ?? at.innerText?.trim();
      });
      if (found === name) return assert.ok(await visibleFocus(page), `the focus of ${name} is visible`);
      await press('Tab');
    }
    assert.fail(`Tab does not reach ${name}`);
  };
  await page.keyboard.type('Hello'); // the field has the focus from the start
  await press('Shift+Enter');
  await page.keyboard.type('there');
  await press('Enter');
  await replied(page);
  assert.match(await text(lastReply(page)), /You said: Hello\s+there \(message 1/);
  await page.keyboard.type('Again'); // and keeps it
  await press('Enter');
  await replied(page);
  assert.match(await text(lastReply(page)), /You said: Again \(message 2/);

  await page.evaluate(() => document.activeElement.blur());
  await reach('Skip to the message');
  await press('Enter');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'message');

  await reach('Conversation menu');
  await press('Enter');
  await reach('Rename');
  await press('Enter');
  await page.keyboard.type('Greetings');
  await press('Enter');
  assert.equal(await text(page.getByRole('heading', { level: 1 })), 'Greetings');

  await page.evaluate(() => document.activeElement.blur());
  await reach('Search the conversations');
  await page.keyboard.type('nothing');
  assert.equal(await page.getByRole('navigation').getByRole('listitem').count(), 0);
  await press('Escape');
  await reach('Greetings');
  await reach('Import');
  await reach('Delete your message');
  await press('Enter');
  await reach('Keep');
  await press('Enter');
  assert.equal(await page.locator('article').count(), 4);

  await page.evaluate(() => document.activeElement.blur());
  await reach('Settings');
  await press('Enter');
  await reach('Temperature');
  await page.keyboard.type('0.5');
  await press('Shift+Tab', 'Shift+Tab');
  await page.evaluate(() => document.activeElement.blur());
  await reach('Edit your message');
  await press('Enter');
  await press('End');
  await page.keyboard.type('!');
  await press('Enter');
  await replied(page);
  const sent = mock.requests.at(-1);
  assert.equal(sent.temperature, 0.5);

  await page.evaluate(() => document.activeElement.blur());
  await reach('Conversation menu');
  await press('Enter');
  await reach('Delete…');
  await press('Enter');
  await reach('Delete');
  await press('Enter');
  assert.equal(await text(page.getByRole('heading', { level: 1 })), 'New conversation');
});

function visibleFocus(page) {
  return page.evaluate(() => {
    const at = document.activeElement;
    const box = at.id === 'message' ? at.closest('.box') : at;
    return box.matches(':focus-visible, :focus-within') && getComputedStyle(box).outlineStyle !== 'none';
  });
}

pageTest('a request carries what was set and nothing else', async (page) => {
  await say(page, 'plain');
  assert.deepEqual(mock.requests.at(-1), {
    model: 'girih-8b',
    messages: [{ role: 'user', content: 'plain' }],
    stream: true,
    stream_options: { include_usage: true },
  });
  await button(page, 'Settings').click();
  const values = { 'System prompt': 'Be brief.', Temperature: '0', 'Top-p': '0.9', 'Top-k': '40', 'Min-p': '0.05', 'Max tokens': '64', Seed: '7' };
  for (const [label, value] of Object.entries(values)) await page.getByLabel(label).fill(value);
  await page.getByLabel('Thinking').selectOption('Low');
  await page.getByLabel('Stop texts, one per line').fill('###\nEND ');
  await page.getByLabel('Model', { exact: true }).selectOption('girih-1b');
  await say(page, 'with settings');
  const { messages, ...sent } = mock.requests.at(-1);
  assert.deepEqual(sent, {
    model: 'girih-1b',
    stream: true,
    stream_options: { include_usage: true },
    temperature: 0,
    top_p: 0.9,
    top_k: 40,
    min_p: 0.05,
    max_tokens: 64,
    seed: 7,
    stop: ['###', 'END '],
    reasoning_effort: 'low',
  });
  assert.deepEqual(messages.map(({ role }) => role), ['system', 'user', 'assistant', 'user']);
  assert.equal(messages[0].content, 'Be brief.');
});

pageTest('a setting that is not valid is named and nothing is sent', async (page) => {
  const before = mock.requests.length;
  await button(page, 'Settings').click();
  await page.getByLabel('Top-p').fill('1.5');
  assert.match(await text(page.locator('#fault-top_p')), /a number from 0 to 1/);
  await page.getByText('Tools, for developers').click();
  await page.getByLabel('Tools, as JSON').fill('[{"name": 3}]');
  assert.match(await text(page.locator('#fault-tools')), /each tool is an object with a name/);
  await button(page, 'Close the settings').click();
  await message(page).fill('Hello');
  await page.keyboard.press('Enter');
  await page.locator('#fault-top_p').waitFor(); // the settings open
  assert.equal(await message(page).inputValue(), 'Hello');
  assert.equal(mock.requests.length, before);
  assert.deepEqual(await accessibilityFaults(page), []);
});

pageTest('a reply streams, and stops by button and by Escape', async (page) => {
  for (const stop of [() => button(page, 'Stop').click(), () => page.keyboard.press('Escape')]) {
    const left = mock.closed.length;
    await message(page).fill('slow');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => [...document.querySelectorAll('article.reply')].at(-1)?.innerText.includes('word word word word'));
    const early = (await text(lastReply(page))).length;
    await page.waitForTimeout(200);
    assert.ok((await text(lastReply(page))).length > early, 'the text grows');
    await stop();
    await replied(page);
    assert.match(await text(lastReply(page)), /You stopped this reply/);
    for (let waits = 0; waits < 50 && mock.closed.length === left; waits++) await page.waitForTimeout(50);
    assert.equal(mock.closed.length, left + 1, 'the server sees the connection close');
    assert.ok(mock.closed.at(-1) < 100);
  }
});

pageTest('the counters say what the server counted', async (page) => {
  await say(page, 'together');
  assert.doesNotMatch(await text(lastReply(page)), /tokens\/s/, 'too short to tell');
  await say(page, 'steady');
  const counters = await text(lastReply(page).locator('.counters'));
  assert.match(counters, /^prompt 60 \(40 cached\) · generated 7 · [\d.,]+ tokens\/s · first token [\d.]+ s$/);
  assert.equal(await text(page.locator('.context')), '67 of 8,192 tokens');
});

pageTest('to edit or retry adds a branch, and the old one stays', async (page) => {
  await say(page, 'first');
  await say(page, 'second');
  await button(page.locator('article.user').first(), 'Edit your message').click();
  await page.getByRole('textbox', { name: 'Edit your message' }).fill('changed');
  await button(page.locator('.editor'), 'Send').click();
  await replied(page);
  assert.equal(await page.locator('article').count(), 2);
  assert.match(await text(lastReply(page)), /You said: changed/);
  await button(page.locator('article.user').first(), 'Previous version').click();
  assert.equal(await page.locator('article').count(), 4);
  assert.match(await text(lastReply(page)), /You said: second/);

  const before = mock.requests.length;
  await button(lastReply(page), 'Retry the reply').click();
  await replied(page);
  assert.equal(mock.requests.length, before + 1);
  assert.ok(Number.isSafeInteger(mock.requests.at(-1).seed), 'a retry has a seed of its own');
  assert.match(await text(lastReply(page).locator('.counters')), new RegExp(`seed ${mock.requests.at(-1).seed}$`));
  assert.deepEqual(mock.requests.at(-1).messages.map(({ content }) => content).slice(0, 1), ['first']);
  assert.match(await text(lastReply(page).locator('.branches')), /2 of 2/);

  await button(lastReply(page), 'Edit the reply').click();
  await page.getByRole('textbox', { name: 'Edit the reply' }).fill('My own words');
  await button(page.locator('.editor'), 'Keep').click();
  assert.match(await text(lastReply(page)), /My own words/);
  await say(page, 'third');
  assert.equal(mock.requests.at(-1).messages.at(-2).content, 'My own words');
});

pageTest('thinking is shown apart, and goes back with the conversation', async (page) => {
  await message(page).fill('think');
  await page.keyboard.press('Enter');
  await page.getByText('Thinking …').waitFor();
  assert.ok(await page.locator('details.thinking').evaluate((details) => details.open), 'open while it goes on');
  await picture(page, 'thinking');
  await replied(page);
  const details = page.locator('details.thinking');
  await page.waitForFunction(() => !document.querySelector('details.thinking').open);
  assert.match(await text(lastReply(page).locator('.markdown')), /^It is 4\.$/);
  await details.locator('summary').click();
  assert.match(await text(details), /Two and two are four/);
  assert.deepEqual(await accessibilityFaults(page), []);
  await say(page, 'next');
  assert.match(mock.requests.at(-1).messages[1].reasoning_content, /Two and two/);
});

pageTest('calls of tools are shown, and the user types their results', async (page) => {
  await button(page, 'Settings').click();
  assert.ok(await page.getByLabel('Tools, as JSON').isHidden());
  await page.getByText('Tools, for developers').click();
  await page.getByLabel('Tools, as JSON').fill('[{"name": "get_weather", "parameters": {"type": "object"}}, {"type": "function", "function": {"name": "get_time"}}]');
  await button(page, 'Close the settings').click();
  await say(page, 'weather');
  assert.deepEqual(mock.requests.at(-1).tools, [
    { type: 'function', function: { name: 'get_weather', parameters: { type: 'object' } } },
    { type: 'function', function: { name: 'get_time' } },
  ]);
  const shown = await text(page.getByLabel('Arguments of get_weather'));
  assert.equal(shown, '{\n  "city": "Isfahan",\n  "days": [\n    1,\n    2\n  ],\n  "units": {\n    "temperature": "celsius"\n  }\n}');
  assert.match(await text(lastReply(page)), /The model waits for these tools\. This page runs no tools\./);
  assert.deepEqual(await accessibilityFaults(page), []);
  assert.ok(await page.getByRole('textbox', { name: 'Result of get_weather' }).isHidden());
  await page.getByText('Type the results yourself').press('Enter');
  await page.getByRole('textbox', { name: 'Result of get_weather' }).fill('{"celsius": 31.0}');
  await page.getByRole('textbox', { name: 'Result of get_time' }).fill('noon');
  await picture(page, 'calls');
  assert.deepEqual(await accessibilityFaults(page), []);
  await button(page, 'Send results').click();
  await replied(page);
  assert.match(await text(lastReply(page)), /The results are \{"celsius": 31\.0\} and noon\./);
  const sent = mock.requests.at(-1).messages;
  assert.deepEqual(sent.slice(1).map(({ role, tool_call_id }) => [role, tool_call_id]), [
    ['assistant', undefined],
    ['tool', 'call_a'],
    ['tool', 'call_b'],
  ]);
  assert.equal(sent[1].tool_calls[0].function.arguments, '{"city":"Isfahan","days":[1,2],"units":{"temperature":"celsius"}}');

  await button(page, 'Edit results').click();
  await page.getByRole('textbox', { name: 'Result of get_time' }).fill('midnight');
  await button(page, 'Send results').click();
  await replied(page);
  assert.match(await text(lastReply(page)), /and midnight\./);
  assert.match(await text(page.locator('.branches')), /2 of 2/);
});

pageTest('JSON is asked for and shown with line breaks', async (page) => {
  await button(page, 'Settings').click();
  await page.getByLabel('Format').selectOption('schema');
  await page.getByLabel('JSON schema').fill('{"type": "object"}');
  await say(page, 'a city');
  assert.deepEqual(mock.requests.at(-1).response_format, { type: 'json_schema', json_schema: { name: 'reply', schema: { type: 'object' } } });
  const shown = await text(lastReply(page).locator('.json'));
  assert.equal(shown, '{\n  "name": "Isfahan",\n  "population": 1.0e6,\n  "twins": [],\n  "at": {\n    "lat": 32.65\n  }\n}');
  assert.deepEqual(await accessibilityFaults(page), []);
});

pageTest('hostile Markdown runs nothing and fetches nothing', async (page) => {
  await say(page, 'hostile');
  await lastReply(page).getByText('https://example.org/auto').waitFor();
  await page.waitForTimeout(300);
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  const shown = lastReply(page).locator('.markdown');
  assert.equal(await shown.locator('img, script, iframe, svg, style, form, input, object, embed, [onerror], [onload], [onclick], [style]').count(), 0);
  const links = await shown.locator('a').evaluateAll((all) => all.map(({ href, rel, target }) => [href, rel, target]));
  assert.ok(links.length >= 3);
  for (const [href, rel, target] of links) {
    assert.match(href, /^https?:\/\//);
    assert.match(rel, /noopener/);
    assert.equal(target, '_blank');
  }
  assert.ok(links.some(([href]) => href === 'https://example.org/page?a=1&b=2'));
  assert.match(await text(shown), /<script>window\.hacked = 2<\/script>/, 'HTML is shown as text');
  for (const dead of await shown.locator('.dead-link').all()) await dead.click();
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.deepEqual(await accessibilityFaults(page), []);
});

pageTest('Markdown that is nested too deep is shown as text', async (page) => {
  await say(page, 'nest');
  await lastReply(page).getByText('>>>>>>>>').first().waitFor();
  await say(page, 'still here');
  assert.match(await text(lastReply(page)), /You said: still here/);
});

pageTest('a code block has a button that copies it', async (page) => {
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
  await say(page, 'markdown');
  await button(page, 'Copy code').click();
  await page.getByText('Copied').waitFor();
  assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^\/\/\/ The interior angle.*\n}$/s);
  await button(page, 'Settings').click();
  await page.getByLabel('Show replies as Markdown').uncheck();
  assert.match(await text(lastReply(page).locator('.text')), /\*\*ten-pointed\*\*/);
});

pageTest('the box of a task stands in the line of its text', async (page) => {
  await say(page, 'markdown');
  const tasks = lastReply(page).locator('li.task');
  assert.deepEqual(await tasks.allInnerTexts(), ['☑ Draw the edges', '☐ Fill the stars', '☐ in a paragraph', '☐ of its own']);
});

pageTest('mathematics stays as it was written', async (page) => {
  await say(page, 'markdown');
  const shown = await lastReply(page).locator('.markdown').evaluate((made) => made.textContent);
  const written = [
    'The angle is \\(\\alpha_1 * 2 + \\beta_1 * 3\\), or $E=mc^2$ and $a_i*b_i*c_i$; it costs $5 or $6, and 値\\(x_1\\)は:',
    '\\[\n- \\sum_{i<n} x_i\n= \\begin{matrix} a & b \\\\ c & d \\end{matrix}\n\\]',
    '$|A|$',
    '$$|B|$$',
  ];
  for (const text of written) assert.ok(shown.includes(text), `${text} is not in ${shown}`);
  assert.equal(await lastReply(page).locator('em').allInnerTexts().then((all) => all.join()), 'straps,stars');
});

pageTest('code is coloured without losing a character', async (page) => {
  await say(page, 'markdown');
  const code = lastReply(page).locator('.code code');
  assert.ok((await code.locator('.code-word').allInnerTexts()).includes('fn'));
  assert.match(await code.evaluate((made) => made.textContent), /^\/\/\/ The interior angle[^]*f64::from\(sides\)\n}$/);
  const colour = (locator) => locator.first().evaluate((made) => getComputedStyle(made).color);
  assert.notEqual(await colour(code.locator('.code-word')), await colour(code));
});

pageTest('a key is asked for where one is needed, and kept for the tab only', async (page) => {
  await page.getByRole('dialog').waitFor();
  assert.match(await text(page.getByRole('dialog')), /a key is needed: Authorization: Bearer KEY/);
  assert.deepEqual(await accessibilityFaults(page), []);
  await picture(page, 'key');
  await page.getByLabel('Key', { exact: true }).fill('wrong');
  await page.keyboard.press('Enter');
  await page.getByText('the key is not valid').waitFor();
  await page.getByLabel('Key', { exact: true }).fill('sesame');
  await page.keyboard.press('Enter');
  await page.getByRole('dialog').waitFor({ state: 'hidden' });
  await say(page, 'Hello');
  assert.match(await text(lastReply(page)), /You said: Hello/);
  assert.ok(!(await page.evaluate(() => JSON.stringify(localStorage))).includes('sesame'));
  await page.reload();
  await say(page, 'The tab keeps it');
  const other = await page.context().newPage();
  await other.goto(page.url());
  await other.getByText('a key is needed').waitFor();
  await other.keyboard.press('Escape');
  await other.getByRole('alert').getByText('a key is needed').waitFor();
  await button(other, 'Try again').click();
  await other.getByRole('dialog').waitFor();
}, { server: { key: 'sesame' } });

pageTest('a message that is sent before the list of models has come names a model', async (page, server) => {
  await say(page, 'Hello');
  assert.equal(server.requests.at(-1).model, 'girih-8b');
  assert.match(await text(lastReply(page)), /girih-8b[^]*You said: Hello/);
}, { server: { listing: 1500 } });

pageTest('errors are said in the words of the server', async (page, server) => {
  await message(page).fill('Hello');
  await page.keyboard.press('Enter');
  await lastReply(page).getByText('the queue is full: 64 requests wait Try again in 7 s.').waitFor();
  server.options.status = null;
  await button(lastReply(page), 'Retry the reply').click();
  await lastReply(page).getByText('You said: Hello').waitFor();
  await say(page, 'fault');
  assert.match(await text(lastReply(page)), /Something arrives, then\s+the step failed: NaN in layer 3/);
  await say(page, 'break');
  assert.match(await text(lastReply(page)), /Something arrives, then\s+The connection broke/);
  await say(page, 'short');
  assert.match(await text(lastReply(page)), /ended at the limit of tokens/);
  await picture(page, 'errors');
  assert.deepEqual(await accessibilityFaults(page), []);
  server.close();
  await say(page, 'nobody');
  assert.match(await text(lastReply(page)), /does not answer\. Is girih serve running\?/);
}, { server: { status: 429 } });

pageTest('a model without a chat template is explained in words for this page', async (page) => {
  await say(page, 'Hello');
  const shown = await text(lastReply(page).locator('.error'));
  assert.match(shown, /^This model has no chat template, so it cannot reply to messages: choose or serve a model/);
  assert.doesNotMatch(shown, /girih run/);
}, { server: { status: 400, refusal: 'the model has no chat template; continue a text with `girih run MODEL TEXT`' } });

pageTest('the built-in model has a hint how its stories begin', async (page, server) => {
  assert.match(await text(page.locator('.empty')), /only tells stories/);
  assert.deepEqual(await accessibilityFaults(page), []);
  await button(page, 'Once upon a time').press('Enter');
  await replied(page);
  assert.equal(server.requests.at(-1).messages[0].content, 'Once upon a time');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'message');
}, { server: { models: ['stories260k'] } });

pageTest('a message whose reply failed is not sent with later ones', async (page, server) => {
  await say(page, 'before');
  server.options.status = 429;
  await say(page, 'lost');
  await lastReply(page).getByText('the queue is full').waitFor();
  server.options.status = null;
  for (const text of ['one', 'two', 'three']) await say(page, text);
  assert.match(await text(page.locator('article.reply').nth(1)), /Later requests leave out this reply and the message above it\./);
  const sent = server.requests.slice(-3).map(({ messages }) => messages);
  assert.deepEqual(sent.map((messages) => messages.length), [3, 5, 7]);
  for (const messages of sent) {
    assert.ok(messages.every(({ role }, at) => role === (at % 2 ? 'assistant' : 'user')));
    assert.ok(messages.every(({ content }) => !content.includes('lost')));
  }
  assert.match(await text(lastReply(page)), /You said: three/);
}, { server: {} });

pageTest('a reply that was cut is continued in its place', async (page) => {
  await button(page, 'Settings').click();
  await page.getByLabel('Temperature').fill('0.5');
  await say(page, 'short');
  await button(lastReply(page), 'Continue the reply').click();
  await replied(page);
  assert.match(await text(lastReply(page)), /This ends at the limit of tokens, and goes on\./);
  assert.deepEqual(mock.requests.at(-1), {
    model: 'girih-8b',
    prompt: [1, 1, ...codes('This ends at the')],
    max_tokens: 10_000_000,
    stream: true,
    stream_options: { include_usage: true },
    temperature: 0.5,
  });
  assert.match(await text(lastReply(page).locator('.counters')), /^prompt 20 · generated 11 ·/, 'both parts together');
  assert.equal(await button(page, 'Continue the reply').count(), 0, 'the model has ended it');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'message');
  await say(page, 'next');
  assert.equal(mock.requests.at(-1).messages[1].content, 'This ends at the limit of tokens, and goes on.');

  await say(page, 'half a character');
  await button(lastReply(page), 'Continue the reply').click();
  await replied(page);
  assert.deepEqual(mock.requests.at(-1).prompt.slice(2), codes('This ends at the '), 'without the half character');

  await message(page).fill('slow');
  await page.keyboard.press('Enter');
  await lastReply(page).getByText('word word word').waitFor();
  await page.keyboard.press('Escape');
  await button(lastReply(page), 'Continue the reply').waitFor();
  await page.getByText('Tools, for developers').click();
  await page.getByLabel('Tools, as JSON').fill('{"name": "f"}');
  await lastReply(page).getByText('Continue is not possible, because the settings have tools.').waitFor();
  assert.equal(await button(page, 'Continue the reply').count(), 0);
  assert.deepEqual(await accessibilityFaults(page), []);
});

pageTest('a server that starts again has another token, which the page reads', async (page, server) => {
  await say(page, 'Before');
  server.options.token = 'e'.repeat(64);
  await say(page, 'After');
  await lastReply(page).getByText('You said: After').waitFor();
}, { server: {} });

pageTest('what arrived is kept when the page is loaded again', async (page) => {
  await message(page).fill('slow');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.querySelector('article.reply')?.innerText.includes('word word word word word word'));
  await page.reload();
  assert.match(await text(lastReply(page)), /word word word word word/);
  assert.match(await text(lastReply(page)), /was closed or loaded again during this reply/);
  await button(lastReply(page), 'Retry the reply').waitFor();
});

pageTest('conversations are listed, exported and deleted', async (page) => {
  await say(page, 'about tiles');
  await button(page, 'New conversation').click();
  await say(page, 'about straps');
  const list = page.getByRole('navigation').getByRole('listitem');
  assert.deepEqual(await list.allInnerTexts(), ['about straps', 'about tiles']);
  await list.nth(1).getByRole('button').click();
  assert.match(await text(lastReply(page)), /You said: about tiles/);
  await button(page, 'Conversation menu').click();
  await picture(page, 'menu');
  assert.deepEqual(await accessibilityFaults(page), []);
  const [file] = await Promise.all([page.waitForEvent('download'), button(page, 'Export as JSON').click()]);
  assert.equal(file.suggestedFilename(), 'about-tiles.json');
  const exported = JSON.parse(readFileSync(await file.path(), 'utf8'));
  assert.deepEqual(exported.messages.map(({ role, content }) => [role, content.slice(0, 11)]), [['user', 'about tiles'], ['assistant', 'You said: a']]);
  const [all] = await Promise.all([page.waitForEvent('download'), button(page, 'Export all').click()]);
  assert.equal(JSON.parse(readFileSync(await all.path(), 'utf8')).length, 2);
  await button(page, 'Conversation menu').click();
  await button(page, 'Delete…').click();
  await button(page.getByRole('dialog'), 'Delete').click();
  assert.deepEqual(await list.allInnerTexts(), ['about straps']);
  await page.reload();
  assert.deepEqual(await list.allInnerTexts(), ['about straps']);
});

pageTest('what was exported is imported, beside what is there', async (page) => {
  await say(page, 'about tiles');
  await say(page, 'short');
  const [file] = await Promise.all([page.waitForEvent('download'), button(page, 'Export all').click()]);
  const path = await file.path();
  const list = page.getByRole('navigation').getByRole('listitem');
  const choose = async (files) => {
    const [chooser] = await Promise.all([page.waitForEvent('filechooser'), button(page, 'Import').click()]);
    await chooser.setFiles(files);
  };
  await choose(path);
  await page.waitForFunction(() => document.querySelectorAll('nav li').length === 2);
  assert.match(await text(lastReply(page)), /This ends at the[^]*ended at the limit of tokens/);
  await page.reload();
  assert.deepEqual(await list.allInnerTexts(), ['about tiles', 'about tiles']);
  await say(page, 'goes on');
  assert.deepEqual(mock.requests.at(-1).messages.map(({ role }) => role), ['user', 'assistant', 'user', 'assistant', 'user']);

  const hostile = { name: 'hostile.json', mimeType: 'application/json', buffer: Buffer.from('{"version":1,"messages":[{"id":"a","parent":"a"}]}') };
  await choose(hostile);
  await page.getByRole('alert').getByText('hostile.json cannot be imported: message 1 of the conversation follows none of the messages before it.').waitFor();
  assert.deepEqual(await accessibilityFaults(page), []);
  assert.equal(await list.count(), 2);
  await choose({ ...hostile, name: 'picture.png', buffer: Buffer.from('\x89PNG') });
  await page.getByRole('alert').getByText('picture.png cannot be imported: it is not JSON').waitFor();
  await button(page, 'New conversation').click();
  assert.equal(await page.getByRole('alert').count(), 0);
});

pageTest('conversations are searched', async (page) => {
  for (const asked of ['about Tiles', 'about straps']) {
    await button(page, 'New conversation').click();
    await say(page, asked);
  }
  const list = page.getByRole('navigation').getByRole('listitem');
  const search = page.getByRole('searchbox', { name: 'Search the conversations' });
  await search.fill('tiles SAID');
  assert.deepEqual(await list.allInnerTexts(), ['about Tiles']);
  await search.fill('tiles straps');
  await page.getByText('No conversation contains this.').waitFor();
  assert.equal(await list.count(), 0);
  assert.deepEqual(await accessibilityFaults(page), []);
  await search.press('Escape');
  assert.deepEqual(await list.allInnerTexts(), ['about straps', 'about Tiles']);
});

pageTest('a message is deleted with its replies', async (page) => {
  for (const asked of ['one', 'two', 'three']) await say(page, asked);
  const remove = async (at) => {
    await button(page.locator('article.user').nth(at), 'Delete your message').click();
    assert.deepEqual(await accessibilityFaults(page), []);
    await button(page.getByRole('dialog'), 'Delete').click();
  };
  await button(page.locator('article.user').nth(1), 'Delete your message').click();
  await button(page.getByRole('dialog'), 'Keep').click();
  assert.equal(await page.locator('article').count(), 6);
  await remove(1);
  assert.deepEqual(await page.locator('article.user .text').allInnerTexts(), ['one', 'three']);
  await page.reload();
  await say(page, 'four');
  const sent = mock.requests.at(-1).messages.filter(({ role }) => role === 'user').map(({ content }) => content);
  assert.deepEqual(sent, ['one', 'three', 'four']);
  await remove(2);
  await remove(1);
  await remove(0);
  assert.equal(await page.getByRole('navigation').getByRole('listitem').count(), 0, 'an empty conversation is not kept');
  assert.equal(await page.evaluate(() => Object.keys(localStorage).filter((key) => key.startsWith('girih.conversation.')).length), 0);
});

pageTest('an editor sends by Enter, and closes when the conversation goes on', async (page) => {
  await say(page, 'first');
  const editor = page.getByRole('textbox', { name: 'Edit your message' });
  await button(page, 'Edit your message').click();
  await editor.fill('changed');
  await editor.press('Shift+Enter');
  await page.keyboard.type('twice');
  await message(page).fill('next');
  await message(page).press('Enter');
  await replied(page);
  assert.equal(await editor.count(), 0);
  await button(page, 'Edit your message').first().click();
  assert.equal(await editor.inputValue(), 'changed\ntwice', 'what was typed is kept');
  await editor.press('Enter');
  await replied(page);
  assert.equal(mock.requests.at(-1).messages[0].content, 'changed\ntwice');
  assert.equal(await page.locator('article').count(), 2);
});

pageTest('a draft stays with its conversation', async (page) => {
  await say(page, 'first');
  await message(page).fill('unsent in the first');
  await button(page, 'New conversation').click();
  assert.equal(await message(page).inputValue(), '');
  await message(page).fill('unsent in a new one');
  await page.getByRole('navigation').getByText('first').click();
  assert.equal(await message(page).inputValue(), 'unsent in the first');
  await button(page, 'New conversation').click();
  assert.equal(await message(page).inputValue(), 'unsent in a new one');
});

pageTest('a model that is not served any more is named', async (page) => {
  await say(page, 'first');
  await page.evaluate(() => {
    const [name] = Object.keys(localStorage).filter((key) => key.startsWith('girih.conversation.'));
    localStorage.setItem(name, localStorage.getItem(name).replaceAll('girih-8b', 'gone-8b'));
  });
  await page.reload();
  await page.getByRole('alert').getByText('The model gone-8b is not served here; girih-8b answers instead.').waitFor();
  await say(page, 'second');
  assert.equal(mock.requests.at(-1).model, 'girih-8b');
  await page.keyboard.press('Tab');
  await button(page, 'New conversation').click();
  assert.equal(await page.getByRole('alert').count(), 0);
});

pageTest('another tab sees a new conversation', async (page) => {
  const other = await page.context().newPage();
  await other.goto(page.url());
  await say(page, 'shared');
  await other.getByRole('navigation').getByText('shared').waitFor();
});

pageTest('a full storage is said, and freed by deleting', async (page) => {
  await say(page, 'small');
  await page.evaluate(() => {
    const id = 'f'.repeat(18);
    const big = { id: 'm', parent: null, role: 'user', content: 'x'.repeat(3_999_000) };
    const record = { version: 1, id, title: 'Big', created: 1, updated: 1, settings: {}, messages: [big], leaf: 'm' };
    localStorage.setItem(`girih.conversation.${id}`, JSON.stringify(record));
    localStorage.setItem('girih.conversation.damaged', '{');
  });
  await page.reload();
  await say(page, 'too much');
  await page.getByRole('alert').getByText('The browser keeps no more text (2 conversations, 4.0 MB)').waitFor();
  assert.deepEqual(await accessibilityFaults(page), []);
  await page.getByRole('navigation').getByText('Big').click();
  await button(page, 'Conversation menu').click();
  await button(page, 'Delete…').click();
  await button(page.getByRole('dialog'), 'Delete').click();
  assert.equal(await page.getByRole('alert').count(), 0);
});
