/** Display names of organizations and projects, and e-mail addresses of invitations. */
import { EMAIL_CHARS, NAME_CHARS } from '../wire/platform/limits.ts';
import { badRequest } from './errors.ts';
import { quote } from './quote.ts';

/** Bound on raw text: longer text is not even normalised. */
const RAW_CHARS = 4 * NAME_CHARS;

/**
 * Control characters, line and paragraph separators, private and unassigned code points, and the marks that turn the
 * direction of the text after them: a name with one of these could imitate another.
 */
const UNPRINTABLE =
  /[\p{Cc}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]/u;

/**
 * A name as it is stored: without white space around it, in normalisation form C, so that two spellings that look
 * alike are one name. Its case stays.
 * @throws 400 for an empty, too long or unprintable one; `what` names the field
 */
export function cleanName(text: string, what = 'name'): string {
  const allowed = `1 to ${NAME_CHARS} printable characters`;
  if (text.length > RAW_CHARS) throw badRequest(`${what} must be ${allowed}, but was ${text.length} long`);
  const name = text.normalize('NFC').trim();
  const length = Array.from(name).length;
  if (length === 0) throw badRequest(`${what} must be ${allowed}, but was empty`);
  if (length > NAME_CHARS) throw badRequest(`${what} must be ${allowed}, but was ${length} long`);
  const bad = UNPRINTABLE.exec(name)?.[0];
  if (bad !== undefined) {
    const code = bad.codePointAt(0)?.toString(16).toUpperCase().padStart(4, '0') ?? '';
    throw badRequest(`${what} must be ${allowed}, but ${quote(name)} has U+${code}`);
  }
  return name;
}

/** Detects typing errors only; verification proves that mail arrives there. */
const EMAIL = /^[^\s@"(),:;<>[\\\]]+@[^\s@"(),:;<>[\\\]]+$/u;

/** An e-mail address in its stored spelling, or null if it is not valid. */
export function readEmail(text: string): string | null {
  if (text.length > 4 * EMAIL_CHARS) return null;
  const email = text.normalize('NFC').trim();
  return email.length <= EMAIL_CHARS && EMAIL.test(email) && !UNPRINTABLE.test(email) ? email : null;
}

/** The case-insensitive key of an address. */
export function emailKey(email: string): string {
  return email.normalize('NFC').toLowerCase();
}
