// Keeps conversations and preferences in the browser's localStorage, up to a cap.

const PREFIX = 'girih.conversation.';
const PREFERENCES = 'girih.preferences';

/** Characters of all conversations together. Browsers keep some five million for a site. */
export const CAP = 4_000_000;

/** The conversations do not fit: the cap or the browser's own limit is reached. */
export class StorageFull extends Error {}

/** Characters of each conversation that is kept, by id. */
const sizes = new Map();

/** Characters that all conversations take. */
export function used() {
  return [...sizes.values()].reduce((sum, size) => sum + size, 0);
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** A conversation of an earlier visit; null if the record is damaged or of another version. */
function revive(text) {
  const conversation = parse(text);
  if (conversation?.version !== 1 || !Array.isArray(conversation.messages)) return null;
  for (const message of conversation.messages) {
    if (message.state === 'running') message.state = 'interrupted';
  }
  return conversation;
}

/** All conversations, newest first. */
export function conversations() {
  const found = [];
  for (const name of Object.keys(localStorage)) {
    if (!name.startsWith(PREFIX)) continue;
    const text = localStorage.getItem(name);
    sizes.set(name.slice(PREFIX.length), text.length);
    const conversation = revive(text);
    if (conversation) found.push(conversation);
  }
  return found.sort((a, b) => b.updated - a.updated);
}

/** Keeps a conversation, or throws `StorageFull` and keeps what it had of it. */
export function save(conversation) {
  const text = JSON.stringify(conversation);
  const others = used() - (sizes.get(conversation.id) ?? 0);
  if (others + text.length > CAP) throw new StorageFull();
  try {
    localStorage.setItem(PREFIX + conversation.id, text);
  } catch {
    throw new StorageFull();
  }
  sizes.set(conversation.id, text.length);
}

/** Forgets a conversation. */
export function remove(id) {
  localStorage.removeItem(PREFIX + id);
  sizes.delete(id);
}

/** Tells `changed(id, conversation or null)` what other tabs keep and remove. */
export function watch(changed) {
  addEventListener('storage', ({ key, newValue }) => {
    if (!key?.startsWith(PREFIX)) return;
    const id = key.slice(PREFIX.length);
    if (newValue === null) sizes.delete(id);
    else sizes.set(id, newValue.length);
    changed(id, newValue === null ? null : revive(newValue));
  });
}

/** The preferences, with `defaults` for those that are not kept. */
export function preferences(defaults) {
  return { ...defaults, ...parse(localStorage.getItem(PREFERENCES)) };
}

/** Keeps the preferences; they are small, and a full storage only forgets them. */
export function savePreferences(values) {
  try {
    localStorage.setItem(PREFERENCES, JSON.stringify(values));
  } catch {
    // nothing depends on them
  }
}
