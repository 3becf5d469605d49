/** Rules for environment variables of sandboxes and functions. Pure. */
import { BOUNDS, LIMITS } from '../wire/platform/limits.ts';
import { badRequest } from './errors.ts';
import { quote } from './quote.ts';

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
