/** Secrets of a project: writes, and the metadata of reads. A value is never returned. */
import { Type, type Static } from 'typebox';
import { BOUNDS, LIMITS } from './platform/limits.ts';
import { nextPage, pageFields } from './platform/paging.ts';

/** The allowed names of a secret, in words. */
export const SECRET_NAME_FORM = `[A-Za-z_][A-Za-z0-9_]* with at most ${LIMITS.secretNameChars} characters`;

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
  allow_http: Type.Optional(
    Type.Boolean({
      default: false,
      description:
        'Also send the value over plain HTTP, where everyone on the way can read it. Otherwise such a request is refused.',
    }),
  ),
  description: Type.Optional(Type.String({ maxLength: BOUNDS.descriptionChars })),
});
export type SecretWrite = Static<typeof SecretWrite>;

/** The same with the name in the body. */
export const NamedSecretWrite = Type.Object({
  name: Type.String({ expected: `a string that matches ${SECRET_NAME_FORM}` }),
  ...SecretWrite.properties,
});
export type NamedSecretWrite = Static<typeof NamedSecretWrite>;

export const SecretListQuery = Type.Object({
  ...pageFields,
  include_object_store: Type.Optional(
    Type.Boolean({
      default: false,
      description: 'Also list credentials of object stores; each item then has `object_store`.',
    }),
  ),
});

export const SecretRecord = Type.Object({
  name: Type.String(),
  allowed_domains: Type.Array(Type.String()),
  allow_http: Type.Optional(Type.Boolean({ description: 'Only where it is true.' })),
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

export const SecretList = Type.Object({ secrets: Type.Array(SecretRecord), ...nextPage });
export type SecretList = Static<typeof SecretList>;
