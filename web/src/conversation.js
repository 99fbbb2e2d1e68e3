// A conversation is a tree of messages: to edit or retry one adds a branch beside it, so nothing is lost.

/**
 * @typedef {{ id: string, name: string, arguments: string, result: string | null }} Call
 * @typedef {{ prompt: number, cached: number, generated: number, first: number, rate: number | null }} Counters
 *   tokens, seconds to the first token, tokens per second
 * @typedef {object} Message
 * @property {string} id
 * @property {string | null} parent
 * @property {'user' | 'assistant'} role
 * @property {string} content
 * @property {import('./images.js').Image[]} [images] of a message of the user
 * @property {string} [thinking]
 * @property {Call[]} [calls]
 * @property {'running' | 'done' | 'stopped' | 'interrupted' | 'failed'} [state] of a reply
 * @property {string} [error] what went wrong, in the server's words
 * @property {string} [finish] the server's finish_reason
 * @property {'text' | 'json' | 'schema'} [format] what the reply was asked to be
 * @property {string} [model]
 * @property {number | null} [seed] the request's; null leaves it to the server
 * @property {Counters} [counters]
 */

/** A random name; `crypto.randomUUID` is missing on plain HTTP. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** An empty conversation with these settings. */
export function newConversation(settings) {
  const now = Date.now();
  return { version: 1, id: newId(), title: '', created: now, updated: now, settings, messages: [], leaf: null };
}

/** The messages from the first to the last of the branch that is shown. */
export function path(conversation) {
  const byId = new Map(conversation.messages.map((message) => [message.id, message]));
  const found = [];
  for (let at = byId.get(conversation.leaf); at; at = byId.get(at.parent)) {
    byId.delete(at.id); // a damaged record may hold a cycle
    found.push(at);
  }
  return found.reverse();
}

/** Whether a reply has neither text nor calls. */
const broughtNothing = ({ content, calls }) => !content && !calls?.length;

/**
 * The ids of the messages of a branch that requests leave out: replies that brought nothing, and the messages
 * that nothing answers. Templates such as Gemma's refuse two messages of the user in a row.
 */
export function leftOut(shown) {
  const isFailed = (message) => message.role === 'assistant' && message.state !== 'running' && broughtNothing(message);
  const isUnanswered = (message, next) => message.role === 'user' && next && (next.role === 'user' || isFailed(next));
  return new Set(shown.filter((message, at) => isFailed(message) || isUnanswered(message, shown[at + 1])).map(({ id }) => id));
}

/** The images of a branch that are sent, too, with a message of the user behind it. */
export function imagesBefore(shown) {
  const out = leftOut([...shown, { id: null, role: 'user' }]);
  return shown.filter(({ id }) => !out.has(id)).flatMap(({ images }) => images ?? []);
}

/** Adds a message under `parent` and shows its branch. Returns the message as the conversation holds it. */
export function add(conversation, parent, message) {
  conversation.messages.push({ id: newId(), parent, ...message });
  conversation.updated = Date.now();
  const added = conversation.messages.at(-1);
  conversation.leaf = added.id;
  return added;
}

/** Removes a message of the user with all its replies. What followed them follows what came before. */
export function removePair(conversation, message) {
  const gone = new Set([message.id]);
  for (const { id, parent, role } of conversation.messages) {
    if (role === 'assistant' && gone.has(parent)) gone.add(id); // a child is younger than its parent
  }
  conversation.messages = conversation.messages.filter(({ id }) => !gone.has(id));
  for (const other of conversation.messages) {
    if (gone.has(other.parent)) other.parent = message.parent;
  }
  conversation.updated = Date.now();
  if (!gone.has(conversation.leaf)) return;
  const before = conversation.messages.findLast(({ id, parent }) => (message.parent ? id === message.parent : parent === null));
  conversation.leaf = null;
  if (before) show(conversation, before);
}

/** Whether each word of `search` is in the title or in a message. */
export function matches(conversation, search) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return true;
  const texts = [conversation.title, ...conversation.messages.map(({ content }) => content)].map((text) => text.toLowerCase());
  return words.every((word) => texts.some((text) => text.includes(word)));
}

/** The branches that begin where `message` does, oldest first. */
export function branches(conversation, message) {
  return conversation.messages.filter((other) => other.parent === message.parent);
}

/** Shows the branch of `message`, up to its newest message. */
export function show(conversation, message) {
  // A child is always younger than its parent, so one pass finds the end.
  let end = message;
  for (const other of conversation.messages) {
    if (other.parent === end.id) end = newestChild(conversation, end);
  }
  conversation.leaf = end.id;
}

function newestChild(conversation, message) {
  return conversation.messages.findLast((other) => other.parent === message.id) ?? message;
}

/** The conversation's name in lists. */
export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const [first] = conversation.messages;
  const words = first?.content.trim().replace(/\s+/g, ' ') ?? '';
  return words.length > 60 ? `${words.slice(0, 59)}…` : words || first?.images?.[0]?.name || 'New conversation';
}
