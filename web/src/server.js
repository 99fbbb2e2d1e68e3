// Calls the server that sent the page, and says its errors in its own words.
import { events } from './event-stream.js';

const KEY = 'girih.key';

/** An answer that is an error, or none at all (`status` is 0). */
export class ServerError extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The key of this tab; the browser forgets it with the tab. */
export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
};

/** Asks the user for a key: resolves to whether there is a new one. The page sets it. */
let askForKey = async () => false;
let asking = null;
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** One question at a time, however many calls were refused. */
function newKey(message) {
  asking ??= askForKey(message).finally(() => (asking = null));
  return asking;
}

/** The server's words for a model without a chat template name a command of the terminal. */
const NO_TEMPLATE = /has no chat template/;
const NO_TEMPLATE_HERE =
  'This model has no chat template, so it cannot reply to messages: choose or serve a model that is made for conversations. ' +
  'Programs can let it continue texts with /v1/completions.';

/** What the server says in an error body: OpenAI's shape, or the text. */
async function errorOf(response) {
  const text = (await response.text().catch(() => '')).slice(0, 4000);
  let message = text.trim();
  let code = null;
  try {
    const { error } = JSON.parse(text);
    message = error.message ?? message;
    code = error.code ?? null;
  } catch {
    // not JSON: the text is the message
  }
  if (NO_TEMPLATE.test(message)) message = NO_TEMPLATE_HERE;
  const wait = response.headers.get('retry-after');
  const after = wait && /^\d+$/.test(wait) ? ` Try again in ${wait} s.` : '';
  return new ServerError((message || `status ${response.status}`) + after, response.status, code);
}

/** Fetches `path` of the server, with these further options. */
async function request(path, options) {
  try {
    return await fetch(new URL(path, document.baseURI), {
      ...options,
      cache: 'no-store',
      credentials: 'omit',
      redirect: 'error',
      referrerPolicy: 'no-referrer',
    });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ServerError(`${location.host} does not answer. Is girih serve running?`);
  }
}

/** A promise of the token by which the server knows its page. A server that starts again has another. */
let pageToken = null;
async function readPageToken() {
  try {
    const response = await request('page-token', {});
    return response.ok ? await response.text() : '';
  } catch (error) {
    pageToken = null; // the next call asks again
    throw error;
  }
}

/** Calls `path`; with `body`, posts it as JSON. Asks for a key as long as the server wants one. */
async function call(path, { body, signal } = {}) {
  let isTokenNew = false;
  for (;;) {
    const used = key.get();
    pageToken ??= readPageToken();
    const headers = { 'x-girih-page': await pageToken };
    signal?.throwIfAborted();
    if (used) headers.authorization = `Bearer ${used}`;
    if (body) headers['content-type'] = 'application/json';
    const response = await request(path, { method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body), signal });
    if (response.ok) return response;
    const error = await errorOf(response);
    if (error.code === 'page_token_invalid' && !isTokenNew) {
      pageToken = null;
      isTokenNew = true;
      continue;
    }
    const changed = key.get() !== used; // another call has asked in the meantime
    if (response.status !== 401 || !(changed || (await newKey(error.message)))) throw error;
    signal?.throwIfAborted();
  }
}

/** The models: `[{ id, context, sees }]`; `context` in tokens, or null if the server does not say; `sees` if it reads images. */
export async function models() {
  const list = await (await call('v1/models')).json();
  return list.data.map(({ id, max_model_len, context_length, architecture }) => ({
    id,
    context: max_model_len ?? context_length ?? null,
    sees: architecture?.input_modalities?.includes('image') ?? false,
  }));
}

/** The tokens of a prompt that ends within a reply: those of the messages, and of the begun text. */
export async function promptOf(model, messages, begun, signal) {
  const tokenize = async (body) => (await (await call('tokenize', { body: { model, ...body }, signal })).json()).tokens;
  const plain = (prompt) => tokenize({ prompt, add_special_tokens: false });
  const asked = await tokenize({ messages });
  // Some tokenizers put a space before a text, which is wrong within one: here, a line's end comes before it.
  const [before, both] = [await plain('\n'), await plain(`\n${begun}`)];
  const isApart = before.every((token, at) => token === both[at]);
  return [...asked, ...(isApart ? both.slice(before.length) : await plain(begun))];
}

/** Yields the chunks of a chat completion. */
export const chat = (body, signal) => chunks('v1/chat/completions', body, signal);

/** Yields the chunks of a completion of tokens. */
export const complete = (body, signal) => chunks('v1/completions', body, signal);

async function* chunks(path, body, signal) {
  const response = await call(path, { body, signal });
  try {
    for await (const data of events(response.body)) {
      if (data === '[DONE]') return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(chunk.error.message ?? String(chunk.error));
      yield chunk;
    }
  } catch (error) {
    if (signal.aborted || error instanceof ServerError) throw error;
    throw new ServerError(`The connection broke during the reply: ${error.message}`);
  }
  throw new ServerError('The connection ended before the reply did.');
}
