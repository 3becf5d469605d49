/** Resolves the write of a secret. Pure. */
import { LIMITS } from '../wire/limits.ts';
import { SECRET_NAME_FORM, type SecretWrite } from '../wire/secret.ts';
import { formatDomainPattern, parseDomainPattern } from './domain-name.ts';
import { isEnvName } from './environment.ts';
import { badRequest, notFound } from './errors.ts';
import { quote } from './quote.ts';

/** A write after every rule that needs no look-up. */
export interface ResolvedSecret {
  name: string;
  value: string;
  /** In their one spelling, each once. */
  allowedDomains: string[];
  description: string | null;
}

/** Throws a 400 with the first rule that is broken; it never shows the value. */
export function resolveSecretWrite(name: string, body: SecretWrite): ResolvedSecret {
  if (!isSecretName(name))
    throw badRequest(`a secret's name must match ${SECRET_NAME_FORM}, but was ${quote(name)}`);
  const bytes = Buffer.byteLength(body.value, 'utf8');
  if (bytes > LIMITS.secretValueBytes)
    throw badRequest(`value has ${bytes} bytes; at most ${LIMITS.secretValueBytes} (64 KiB) are allowed`);
  const domains = (body.allowed_domains ?? []).map((text, index) =>
    checkAllowedDomain(text, `allowed_domains[${index}]`),
  );
  return {
    name,
    value: body.value,
    allowedDomains: [...new Set(domains)],
    description: body.description || null,
  };
}

/** Whether something may have this name. It is the name of the variable inside, too. */
export function isSecretName(text: string): boolean {
  return text.length <= LIMITS.secretNameChars && isEnvName(text);
}

/** An entry of `allowed_domains` in its one spelling. Throws a 400 naming `field` on what is none. */
export function checkAllowedDomain(text: string, field = 'allowed_domains'): string {
  const pattern = parseDomainPattern(text);
  if (pattern !== null) return formatDomainPattern(pattern);
  throw badRequest(
    `${field} must be a host name, or *. and a domain, without scheme, path and port, but was ${quote(text)}`,
  );
}

/** An unknown name and another project's must be told in the same words. */
export function secretNotFound(name: string): Error {
  return notFound(`secret ${quote(name)} not found`);
}
