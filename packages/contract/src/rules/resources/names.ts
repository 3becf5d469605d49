/** Display names of organizations and projects, e-mail addresses of invitations, and environment variables. Pure. */
import { BOUNDS, EMAIL_CHARS, LIMITS, NAME_CHARS } from '../../wire/platform/limits.ts';
import { badRequest, quote } from '../errors.ts';

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
export function cleanName(text: string, what = 'name', most = NAME_CHARS): string {
  const allowed = `1 to ${most} printable characters`;
  // Longer text is not even normalised.
  if (text.length > 4 * most) throw badRequest(`${what} must be ${allowed}, but was ${text.length} long`);
  const name = text.normalize('NFC').trim();
  const length = Array.from(name).length;
  if (length === 0) throw badRequest(`${what} must be ${allowed}, but was empty`);
  if (length > most) throw badRequest(`${what} must be ${allowed}, but was ${length} long`);
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

const ENV_NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;

export function isEnvName(text: string): boolean {
  return text.length <= BOUNDS.envNameChars && ENV_NAME.test(text);
}

/**
 * A copy whose every name is an own property, `__proto__` included. Throws a 400 that names the variable and
 * never shows its value.
 */
export function checkEnv(env: Readonly<Record<string, string>>, field = 'env'): Record<string, string> {
  const entries = Object.entries(env);
  let total = 0;
  for (const [name, value] of entries) {
    if (!isEnvName(name))
      throw badRequest(
        `${field} name ${quote(name)} is not valid: names match [A-Za-z_][A-Za-z0-9_]* and have at most ${BOUNDS.envNameChars} characters`,
      );
    const bytes = Buffer.byteLength(value, 'utf8');
    if (bytes > LIMITS.envValueBytes)
      throw badRequest(
        `${field}.${name} has ${bytes} bytes; at most ${LIMITS.envValueBytes} (64 KiB) are allowed`,
      );
    total += name.length + bytes;
  }
  if (total > BOUNDS.envTotalBytes)
    throw badRequest(
      `${field} has ${total} bytes in all; at most ${BOUNDS.envTotalBytes} (1 MiB) are allowed`,
    );
  return Object.fromEntries(entries);
}
