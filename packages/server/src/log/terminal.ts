import { styleText } from 'node:util';

interface Line {
  level: number;
  time: number;
  msg?: string;
  part?: string;
  err?: { message?: string; stack?: string };
  [key: string]: unknown;
}

/** Fields of every line that are not shown on a terminal. */
const NOISE = new Set(['level', 'time', 'msg', 'pid', 'hostname', 'part', 'err', 'name', 'v']);
const VALUE_MAX = 200;

/** Formats a JSON log line: `12:03:04 runner  message (key=value)`. Undefined if it is not JSON. */
export function humanLine(json: string, role: string, color: boolean): string | undefined {
  let line: Line;
  try {
    line = JSON.parse(json) as Line;
  } catch {
    return undefined;
  }
  if (typeof line !== 'object' || line === null || typeof line.level !== 'number') return undefined;
  const paint = (style: Parameters<typeof styleText>[0], text: string): string =>
    color ? styleText(style, text, { validateStream: false }) : text;
  const facts = Object.entries(line)
    .filter(([key]) => !NOISE.has(key))
    .map(([key, value]) => `${key}=${oneLine(typeof value === 'string' ? value : JSON.stringify(value))}`);
  const cause = line.err?.message === undefined ? '' : `: ${oneLine(line.err.message)}`;
  const text = `${oneLine(line.msg ?? '')}${cause}`;
  const time = new Date(line.time).toLocaleTimeString('en-GB', { hour12: false });
  const marked = line.level >= 50 ? paint('red', text) : line.level >= 40 ? paint('yellow', text) : text;
  const tail = facts.length === 0 ? '' : ` ${paint('dim', `(${facts.join(' ')})`)}`;
  return `${paint('dim', `${time} ${role.padEnd(8)}`)} ${marked}${tail}`;
}

/** Control characters come from images and guests, and must not reach a terminal. */
function oneLine(text: string): string {
  // eslint-disable-next-line no-control-regex
  const clean = text.replace(/[\u0000-\u001f\u007f-\u009f]+/g, ' ').trim();
  return clean.length > VALUE_MAX * 4 ? `${clean.slice(0, VALUE_MAX * 4)}…` : clean;
}
