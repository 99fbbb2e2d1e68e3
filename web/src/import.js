// Reads conversations from a file that this page exported. The file may be anybody's, so only what is checked here
// is taken from it.
import { newId } from './conversation.js';
import { MAX_IMAGES, TYPES, bytesOf, takeUrls } from './images.js';
import { EMPTY } from './settings.js';

/** The largest file, in bytes. An export has up to six bytes for a character, indents, and four bytes for three of an image. */
const MAX_BYTES = 200_000_000;

const MAX_CONVERSATIONS = 1000;

/** Messages of one conversation, with all its branches. */
const MAX_MESSAGES = 5000;

const MAX_CALLS = 128;

/**
 * The conversations of `file`, with new ids; their images are not kept yet. Rejects with the clause that follows the file's name and a colon.
 * @param {File} file
 * @param {number} room characters that storage still takes
 */
export async function importedConversations(file, room) {
  if (file.size > MAX_BYTES) throw new Error(`it has ${(file.size / 1e6).toFixed(1)} MB; the maximum is ${MAX_BYTES / 1e6} MB.`);
  const found = conversationsIn(await file.text());
  // Images are kept apart.
  const text = (name, value) => (name === 'url' ? undefined : value);
  const size = found.reduce((sum, conversation) => sum + JSON.stringify(conversation, text).length, 0);
  if (size > room) {
    const [needed, left] = [size, room].map((characters) => (Math.max(0, characters) / 1e6).toFixed(1));
    throw new Error(`it needs ${needed} MB, and the browser has room for ${left} MB; delete conversations first.`);
  }
  takeUrls(found);
  return found;
}

/** The conversations of an exported text: of one conversation, or of a list. */
export function conversationsIn(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error('it is not JSON; choose a file that this page exported.');
  }
  const list = Array.isArray(value) ? value : [value];
  check(list.length >= 1 && list.length <= MAX_CONVERSATIONS, `it has ${list.length} conversations; 1 to ${MAX_CONVERSATIONS} are read.`);
  return list.map((one, index) => conversation(one, list.length > 1 ? `conversation ${index + 1}` : 'the conversation'));
}

function check(holds, sentence) {
  if (!holds) throw new Error(sentence);
}

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);
const isText = (value) => typeof value === 'string';
const isFormat = (value) => ['text', 'json', 'schema'].includes(value);
const isTime = (value) => Number.isSafeInteger(value) && value >= 0;

/** The value if `accepts` it, else `otherwise`: for what a conversation can do without. */
const taken = (value, accepts, otherwise) => (accepts(value) ? value : otherwise);

function conversation(value, where) {
  check(isObject(value) && value.version === 1, `${where} is not of version 1; choose a file that this page exported.`);
  const count = Array.isArray(value.messages) ? value.messages.length : 0;
  check(count >= 1 && count <= MAX_MESSAGES, `${where} has ${count} messages; 1 to ${MAX_MESSAGES} are read.`);
  const roles = new Map();
  const given = isObject(value.settings) ? value.settings : {};
  const settings = Object.fromEntries(Object.entries(EMPTY).map(([name, empty]) => [name, taken(given[name], isText, empty)]));
  settings.format = taken(settings.format, isFormat, EMPTY.format);
  const messages = value.messages.map((one, index) => message(one, roles, `message ${index + 1} of ${where}`));
  const now = Date.now();
  return {
    version: 1,
    id: newId(),
    title: taken(value.title, isText, '').slice(0, 200),
    created: taken(value.created, isTime, now),
    updated: Math.min(taken(value.updated, isTime, now), now),
    settings,
    messages,
    leaf: roles.has(value.leaf) ? value.leaf : messages.at(-1).id,
  };
}

/** A message; `roles` has those of the messages before it, by id. */
function message(value, roles, where) {
  check(isObject(value), `${where} is not an object.`);
  const { id, parent, role, content } = value;
  check(isText(id) && id !== '' && id.length <= 100 && !roles.has(id), `${where} has no id of its own.`);
  check(parent === null || roles.has(parent), `${where} follows none of the messages before it.`);
  check(['user', 'assistant'].includes(role), `${where} has no role; user and assistant are known.`);
  check(isText(content), `${where} has no text as its content.`);
  const before = parent === null ? 'assistant' : roles.get(parent);
  check(role === 'assistant' ? parent !== null : before === 'assistant', `${where} does not take turns with the one before it.`);
  roles.set(id, role);
  return role === 'user' ? { id, parent, role, content, ...pictures(value, where) } : { id, parent, role, content, ...reply(value, where) };
}

/** The images of a message, with their data URLs. */
function pictures(value, where) {
  const images = taken(value.images, Array.isArray, []);
  if (images.length === 0) return {};
  check(images.length <= MAX_IMAGES && images.every(isImage), `${where} has images that cannot be read.`);
  return {
    images: images.map(({ name, type, width, height, url, scaled }) => {
      const image = { id: newId(), name: name.slice(0, 200), type, width, height, url, bytes: bytesOf(url) };
      return isText(scaled) ? { ...image, scaled: scaled.slice(0, 200) } : image;
    }),
  };
}

const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;
const isSide = (value) => Number.isSafeInteger(value) && value >= 1 && value <= 1_000_000;

function isImage(value) {
  if (!isObject(value) || !isText(value.name) || !TYPES.includes(value.type)) return false;
  const head = `data:${value.type};base64,`;
  if (!isSide(value.width) || !isSide(value.height) || !isText(value.url) || !value.url.startsWith(head)) return false;
  const base64 = value.url.slice(head.length);
  return base64.length % 4 === 0 && BASE64.test(base64);
}

function reply(value, where) {
  const calls = taken(value.calls, Array.isArray, []);
  check(calls.length <= MAX_CALLS && calls.every(isCall), `${where} has calls that cannot be read.`);
  const given = isObject(value.counters) ? value.counters : {};
  const counter = (name, otherwise) => taken(given[name], (number) => Number.isFinite(number) && number >= 0, otherwise);
  return {
    thinking: taken(value.thinking, isText, ''),
    calls: calls.map(({ id, name, arguments: text, result }) => ({ id, name, arguments: text, result })),
    state: taken(value.state, (state) => ['done', 'stopped', 'interrupted', 'failed'].includes(state), 'interrupted'),
    error: taken(value.error, isText, ''),
    finish: taken(value.finish, isText, ''),
    format: taken(value.format, isFormat, EMPTY.format),
    model: taken(value.model, isText, ''),
    seed: taken(value.seed, Number.isSafeInteger, null),
    counters: {
      prompt: counter('prompt', null),
      cached: counter('cached', 0),
      generated: counter('generated', null),
      first: counter('first', null),
      rate: counter('rate', null),
    },
  };
}

function isCall(value) {
  if (!isObject(value)) return false;
  return [value.id, value.name, value.arguments].every(isText) && (value.result === null || isText(value.result));
}
