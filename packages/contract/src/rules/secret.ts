/** Resolves the write of a secret. Pure. */
import { LIMITS } from '../wire/platform/limits.ts';
import { SECRET_NAME_FORM, type SecretWrite } from '../wire/storage/secret.ts';
import { formatDomainPattern, parseDomainPattern } from './domain-name.ts';
import { isEnvName } from './environment.ts';
import { badRequest, notFound } from './errors.ts';
import { quote } from './quote.ts';

/** A write after every rule that needs no lookup. */
export interface ResolvedSecret {
  name: string;
  value: string;
  /** Canonical, without duplicates. */
  allowedDomains: string[];
  allowHttp: boolean;
  description: string | null;
}

/** Throws a 400 for the first violated rule; it never contains the value. */
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
    allowHttp: body.allow_http === true,
    description: body.description || null,
  };
}

/** Whether a secret may have this name, which is also the name of its variable. */
export function isSecretName(text: string): boolean {
  return text.length <= LIMITS.secretNameChars && isEnvName(text);
}

/** A canonical entry of `allowed_domains`. Throws a 400 naming `field` for an invalid one. */
export function checkAllowedDomain(text: string, field = 'allowed_domains'): string {
  const pattern = parseDomainPattern(text);
  if (pattern !== null) return formatDomainPattern(pattern);
  throw badRequest(
    `${field} must be a host name, or *. and a domain, without scheme, path and port, but was ${quote(text)}`,
  );
}

/** The same 404 for an unknown name and another project's. */
export function secretNotFound(name: string): Error {
  return notFound(`secret ${quote(name)} not found`, 'secret_not_found');
}
