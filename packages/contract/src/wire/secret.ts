/** Secrets of a project: what a write takes, and the metadata that reads show. A value is never read back. */
import { Type, type Static } from 'typebox';
import { formatDomainPattern, parseDomainPattern } from '../rules/domain-name.ts';
import { isEnvName } from '../rules/environment.ts';
import { badRequest, notFound, quote } from '../rules/errors.ts';
import { BOUNDS, LIMITS } from './limits.ts';

const SECRET_NAME_FORM = `[A-Za-z_][A-Za-z0-9_]* with at most ${LIMITS.secretNameChars} characters`;

export const SecretWrite = Type.Object({
  value: Type.String({
    writeOnly: true,
    expected: 'a string of at most 64 KiB',
    description: 'Never given back.',
  }),
  allowed_domains: Type.Optional(
    Type.Array(Type.String(), {
      maxItems: BOUNDS.domainsPerSecret,
      default: [],
      description:
        'Where the value may be sent: exact host names, or `*.` and a domain for every name below it. No schemes, paths or ports.',
    }),
  ),
  description: Type.Optional(Type.String({ maxLength: BOUNDS.descriptionChars })),
});
export type SecretWrite = Static<typeof SecretWrite>;

/** The same where the path does not name it. */
export const NamedSecretWrite = Type.Object({
  name: Type.String({ expected: `a string that matches ${SECRET_NAME_FORM}` }),
  ...SecretWrite.properties,
});
export type NamedSecretWrite = Static<typeof NamedSecretWrite>;

export const SecretListQuery = Type.Object({
  include_object_store: Type.Optional(
    Type.Boolean({
      default: false,
      description:
        'Also those that object stores use as their credentials; each item then says whether it is one.',
    }),
  ),
});

export const SecretRecord = Type.Object({
  name: Type.String(),
  allowed_domains: Type.Array(Type.String()),
  description: Type.Optional(Type.String()),
  object_store: Type.Optional(
    Type.Boolean({
      description: 'Whether an object store uses it; in lists with `include_object_store` only.',
    }),
  ),
  created_at: Type.String({ format: 'date-time' }),
  updated_at: Type.String({ format: 'date-time' }),
});
export type SecretRecord = Static<typeof SecretRecord>;

export const SecretList = Type.Object({ secrets: Type.Array(SecretRecord) });
export type SecretList = Static<typeof SecretList>;

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
