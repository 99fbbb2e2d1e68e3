// The settings of a conversation, as typed, and the request that they and its messages make.
import { leftOut, path } from './conversation.js';

/** Every setting is the text of its field; an empty one leaves the choice to the server. */
export const EMPTY = {
  model: '',
  system: '',
  temperature: '',
  top_p: '',
  top_k: '',
  min_p: '',
  max_tokens: '',
  seed: '',
  stop: '',
  format: 'text',
  schema: '',
  tools: '',
  thinking: '',
};

/** The fields of numbers: label, smallest and largest value. */
export const NUMBERS = {
  temperature: { label: 'Temperature', min: 0, max: 2 },
  top_p: { label: 'Top-p', min: 0, max: 1 },
  top_k: { label: 'Top-k', min: 0, max: 1_000_000, whole: true },
  min_p: { label: 'Min-p', min: 0, max: 1 },
  max_tokens: { label: 'Max tokens', min: 1, max: 10_000_000, whole: true },
  seed: { label: 'Seed', min: 0, max: Number.MAX_SAFE_INTEGER, whole: true },
};

/** Reads one field: `{ value }`, where undefined means empty, or `{ fault }`, a sentence. */
export function read(settings, name) {
  const text = settings[name].trim();
  if (text === '') return name === 'schema' && settings.format === 'schema' ? { fault: 'Enter a JSON schema.' } : {};
  if (NUMBERS[name]) return readNumber(text, NUMBERS[name]);
  switch (name) {
    case 'stop':
      return { value: settings.stop.split('\n').filter((line) => line !== '') };
    case 'schema':
      return settings.format === 'schema' ? readJson(text, isObject, 'a JSON schema is an object') : {};
    case 'tools':
      return readTools(text);
    default:
      return { value: settings[name] };
  }
}

/** Every field's fault: `{ name: sentence }`. */
export function faults(settings) {
  const found = Object.keys(EMPTY).map((name) => [name, read(settings, name).fault]);
  return Object.fromEntries(found.filter(([, fault]) => fault));
}

function readNumber(text, { min, max, whole }) {
  const value = Number(text);
  const kind = whole ? 'a whole number' : 'a number';
  const fits = (whole ? Number.isSafeInteger(value) : Number.isFinite(value)) && value >= min && value <= max;
  return fits ? { value } : { fault: `Enter ${kind} from ${min} to ${max}, or nothing.` };
}

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

function readJson(text, accepts, sentence) {
  try {
    const value = JSON.parse(text);
    return accepts(value) ? { value } : { fault: `Not accepted: ${sentence}.` };
  } catch (error) {
    return { fault: `Not valid JSON: ${error.message}` };
  }
}

/** An array of tools, or one; each as OpenAI writes it, or its `function` alone. */
function readTools(text) {
  const isTool = (value) => isObject(value) && typeof (value.function ?? value).name === 'string';
  const accepts = (value) => (Array.isArray(value) ? value.every(isTool) : isTool(value));
  const { value, fault } = readJson(text, accepts, 'each tool is an object with a name');
  if (fault) return { fault };
  return { value: [value].flat().map((tool) => (tool.function ? tool : { type: 'function', function: tool })) };
}

/** The body of the request that continues the shown branch. The settings must have no faults. */
export function requestBody(conversation) {
  const settings = conversation.settings;
  const get = (name) => read(settings, name).value;
  const body = {
    model: settings.model,
    messages: messages(settings.system, path(conversation)),
    ...common(settings),
  };
  if (get('tools') !== undefined) body.tools = get('tools');
  if (settings.thinking) body.reasoning_effort = settings.thinking;
  if (settings.format === 'json') body.response_format = { type: 'json_object' };
  if (settings.format === 'schema') {
    body.response_format = { type: 'json_schema', json_schema: { name: 'reply', schema: get('schema') } };
  }
  return body;
}

/**
 * Why `reply`, whose conversation may have images, cannot be continued, as the end of a sentence; '' if it can be. A
 * completion knows text only.
 */
export function continueFault(reply, settings, hasImages) {
  if (hasImages) return 'the conversation has images';
  if (reply.calls.length > 0) return 'it calls tools';
  if (reply.thinking) return 'it contains thinking';
  if (reply.format !== 'text' || settings.format !== 'text') return 'its format is JSON';
  if (settings.tools.trim()) return 'the settings have tools';
  return settings.thinking ? 'the settings change the thinking' : '';
}

/** The messages that `reply` answers. */
export function messagesBefore(conversation, reply) {
  return messages(conversation.settings.system, path({ ...conversation, leaf: reply.parent }));
}

/** The body of the request that continues the tokens of a prompt. Without a limit, a reply may fill the context. */
export function continuationBody(settings, prompt) {
  return { prompt, max_tokens: NUMBERS.max_tokens.max, ...common(settings) };
}

/** What requests for chat completions and for completions share. */
function common(settings) {
  const body = { stream: true, stream_options: { include_usage: true } };
  for (const name of [...Object.keys(NUMBERS), 'stop']) {
    const { value } = read(settings, name);
    if (value !== undefined) body[name] = value;
  }
  return body;
}

function messages(system, shown) {
  const list = system.trim() === '' ? [] : [{ role: 'system', content: system }];
  const out = leftOut(shown);
  for (const message of shown) {
    if (out.has(message.id)) continue;
    if (message.role === 'user') list.push(question(message));
    else list.push(...reply(message));
  }
  return list;
}

/** A message of the user; its images become parts when they are sent. */
function question({ content, images }) {
  return images?.length > 0 ? { role: 'user', content, images } : { role: 'user', content };
}

/** A reply and the results of its calls. */
function reply({ content, thinking, calls }) {
  const message = { role: 'assistant', content: content || null };
  if (thinking) message.reasoning_content = thinking;
  if (!calls?.length) return [message];
  message.tool_calls = calls.map((call) => ({
    id: call.id,
    type: 'function',
    function: { name: call.name, arguments: call.arguments },
  }));
  const answered = calls.filter((call) => call.result !== null);
  return [message, ...answered.map((call) => ({ role: 'tool', tool_call_id: call.id, content: call.result }))];
}
