// The parts of the page that need no browser.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { add, branches, newConversation, path, removePair, show, titleOf } from '../src/conversation.js';
import { events } from '../src/event-stream.js';
import { indented } from '../src/json.js';
import { conversationsIn } from '../src/import.js';
import { masked, restored } from '../src/mathematics.js';
import { EMPTY, faults, requestBody } from '../src/settings.js';

/** The events of a stream whose bytes arrive in pieces of `size`. */
async function eventsOf(text, size) {
  const bytes = new TextEncoder().encode(text);
  const pieces = Array.from({ length: Math.ceil(bytes.length / size) }, (_, at) => bytes.slice(at * size, at * size + size));
  const found = [];
  for await (const data of events(ReadableStream.from(pieces))) found.push(data);
  return found;
}

test('events are the same however their bytes arrive', async () => {
  const text = ': ping\n\ndata: {"a":"é ☆ 𝄞"}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\ndata: [DONE]\r\rdata: cut';
  for (const size of [1, 2, 3, 7, 1000]) {
    assert.deepEqual(await eventsOf(text, size), ['{"a":"é ☆ 𝄞"}', 'two\nlines', '[DONE]'], `pieces of ${size}`);
  }
});

test('an event without end is refused', async () => {
  await assert.rejects(eventsOf(`data: ${'x'.repeat(17_000_000)}`, 1_000_000), /longer than 16000000 characters/);
});

test('JSON keeps its numbers, and its depth is limited', () => {
  assert.equal(indented('{"a":[1.0,{"b\\"]":1e400}],"c":{ },"d":[]}'), '{\n  "a": [\n    1.0,\n    {\n      "b\\"]": 1e400\n    }\n  ],\n  "c": {},\n  "d": []\n}');
  assert.equal(indented('"text"'), '"text"');
  assert.equal(indented('{"a": 1'), null);
  assert.equal(indented(''), null);
  const deep = '['.repeat(2000) + ']'.repeat(2000);
  assert.equal(indented(deep), deep);
});

test('branches of a conversation', () => {
  const conversation = newConversation({ ...EMPTY });
  const say = (parent, content) => add(conversation, parent, { role: 'user', content });
  const first = say(null, 'a');
  const second = say(first.id, 'b');
  say(second.id, 'c');
  const other = say(first.id, 'd');
  const shown = () => path(conversation).map(({ content }) => content).join('');
  assert.equal(shown(), 'ad');
  show(conversation, second);
  assert.equal(shown(), 'abc');
  show(conversation, first);
  assert.equal(shown(), 'ad', 'the newest branch');
  assert.deepEqual(branches(conversation, other).map(({ content }) => content), ['b', 'd']);
  assert.equal(titleOf(conversation), 'a');
  conversation.messages[0].parent = other.id; // a damaged record
  assert.equal(shown(), 'ad');
});

test('settings are checked before they are sent', () => {
  const wrong = { temperature: 'hot', top_p: '1.1', top_k: '1.5', min_p: '-1', max_tokens: '0', seed: '1e99', tools: '[1]', format: 'schema' };
  assert.deepEqual(Object.keys(faults({ ...EMPTY, ...wrong })), [...Object.keys(wrong).slice(0, 6), 'schema', 'tools']);
  assert.deepEqual(faults({ ...EMPTY, temperature: ' 0.7 ', schema: 'not used', tools: '{"name": "f"}' }), {});
  assert.match(faults({ ...EMPTY, tools: '[{' }).tools, /^Not valid JSON/);
});

test('a message without an answer is not sent', () => {
  const conversation = newConversation({ ...EMPTY, model: 'm' });
  const say = (content) => add(conversation, conversation.leaf, { role: 'user', content });
  const reply = (more) => add(conversation, conversation.leaf, { role: 'assistant', content: '', thinking: '', calls: [], state: 'done', ...more });
  const sent = () => requestBody(conversation).messages.map(({ role, content }) => [role, content]);
  say('a');
  reply({ state: 'failed' });
  say('b');
  assert.deepEqual(sent(), [['user', 'b']]);
  reply({ state: 'stopped', thinking: 'only that' });
  say('c');
  reply({ state: 'failed', content: 'some text' });
  say('d');
  say('e');
  assert.deepEqual(sent(), [['user', 'c'], ['assistant', 'some text'], ['user', 'e']]);
  reply({ calls: [{ id: '1', name: 'f', arguments: '{}', result: 'r' }] });
  reply({ state: 'failed' });
  say('g');
  const rest = [['user', 'e'], ['assistant', null], ['tool', 'r'], ['user', 'g']];
  assert.deepEqual(sent().slice(2), rest, 'the results of calls stay');
});

test('mathematics in Markdown is found, and money is not', () => {
  const found = (text) => {
    assert.equal(restored(masked(text)), text);
    return masked(text).replace(/[\ufdd0-\ufdef]+/g, '•');
  };
  assert.equal(found('\\(x_1\\) \\[y\\] $a*b$ $$|z|$$'), '•x•1• •y• •a•b• •z•');
  assert.equal(found('\\[\n- x\n= y\n\\]'), '•\n• x\n• y\n•');
  const others = ['$5 and $6', '**$HOME** and **$PATH**', 'US$5, A$6', '\\$5 or \\$6', '\\\\(x\\\\)', '`$a` or `b$`', '\\(a\n\nb\\)', '[a](https://a.org/b_\\(c\\))', '$ x $', '\\(x'];
  for (const text of others) assert.equal(found(text), text);
  assert.equal(restored(masked('a \ufdd0 b')), 'a \ufffd b', 'a noncharacter is no text');
});

test('a pair is removed from its branch only', () => {
  const conversation = newConversation({ ...EMPTY });
  const say = (parent, content) => add(conversation, parent?.id ?? null, { role: 'user', content });
  const reply = (parent, content) => add(conversation, parent.id, { role: 'assistant', content });
  const first = say(null, 'a');
  const second = say(reply(first, 'b'), 'c');
  reply(second, 'd');
  const kept = say(reply(second, 'e'), 'f');
  const shown = () => path(conversation).map(({ content }) => content).join('');
  assert.equal(shown(), 'abcef');
  removePair(conversation, second);
  assert.equal(shown(), 'abf');
  const other = say(null, 'x');
  removePair(conversation, other);
  assert.equal(shown(), 'abf', 'the newest other branch is shown');
  removePair(conversation, kept);
  assert.equal(shown(), 'ab');
  removePair(conversation, first);
  assert.deepEqual([conversation.messages, conversation.leaf], [[], null]);
});

test('only what is checked is imported', () => {
  const user = { id: 'a', parent: null, role: 'user', content: 'x', onload: 'y' };
  const reply = { id: 'b', parent: 'a', role: 'assistant', content: 'y', calls: [{ id: 'c', name: 'f', arguments: '{}', result: null, more: 1 }], state: 'running', seed: 'z', counters: { prompt: -1, generated: 3 } };
  const record = { version: 1, id: '../x', title: 7, updated: 9e15, settings: { system: 's', top_p: 1, format: 'x', other: 1 }, messages: [user, reply], leaf: 'none' };
  const [read] = conversationsIn(JSON.stringify(record));
  assert.match(read.id, /^[0-9a-f]{18}$/);
  assert.deepEqual([read.title, read.leaf, read.settings], ['', 'b', { ...EMPTY, system: 's' }]);
  assert.ok(read.updated <= Date.now());
  assert.deepEqual(read.messages[0], { id: 'a', parent: null, role: 'user', content: 'x' });
  const { calls, state, seed, counters } = read.messages[1];
  assert.deepEqual(calls, [{ id: 'c', name: 'f', arguments: '{}', result: null }]);
  assert.deepEqual([state, seed, counters.prompt, counters.generated], ['interrupted', null, null, 3]);

  const refused = (change, sentence) => assert.throws(() => conversationsIn(JSON.stringify({ ...record, ...change })), sentence);
  refused({ version: 2 }, /the conversation is not of version 1/);
  refused({ messages: [] }, /has 0 messages; 1 to 5000/);
  refused({ messages: Array(5001).fill(user) }, /has 5001 messages/);
  refused({ messages: [user, user] }, /message 2 of the conversation has no id of its own/);
  refused({ messages: [reply, user] }, /message 1 of the conversation follows none/);
  refused({ messages: [{ ...user, role: 'system' }] }, /no role/);
  refused({ messages: [{ ...user, content: ['x'] }] }, /no text/);
  const image = { id: '../x', name: 'a.png', type: 'image/png', width: 2, height: 1, url: 'data:image/png;base64,AAAA', onload: 'z' };
  const withImage = (change) => ({ messages: [{ ...user, images: [{ ...image, ...change }] }] });
  const [found] = conversationsIn(JSON.stringify({ ...record, ...withImage({}) }))[0].messages[0].images;
  assert.match(found.id, /^[0-9a-f]{18}$/);
  assert.deepEqual({ ...found, id: '' }, { id: '', name: 'a.png', type: 'image/png', width: 2, height: 1, url: 'data:image/png;base64,AAAA', bytes: 3 });
  for (const change of [{ type: 'image/svg+xml' }, { width: 0 }, { height: 1.5 }, { name: 1 }, { url: 'https://a.org/x.png' }, { url: 'data:text/html;base64,AAAA' }, { url: 'data:image/png;base64,A' }, { url: 'data:image/png;base64,<a>=' }]) {
    refused(withImage(change), /message 1 of the conversation has images that cannot be read/);
  }
  refused({ messages: [{ ...user, images: Array(17).fill(image) }] }, /images that cannot be read/);
  refused({ messages: [user, { ...user, id: 'b', parent: 'a' }] }, /does not take turns/);
  refused({ messages: [user, { ...reply, calls: [{ id: 1 }] }] }, /calls that cannot be read/);
  for (const text of ['', '{', 'null', '3', '"x"', '[]', '[[]]', '['.repeat(1e6), `[${'{},'.repeat(1000)}{}]`]) {
    assert.throws(() => conversationsIn(text), /version 1|not JSON|conversations; 1 to 1000/, text.slice(0, 10));
  }
});
