/** Schemas that several resources share, and the runner protocol. They are no part of the interface of this package. */
import { Type, type TSchema } from 'typebox';
import { BOUNDS, NAME_CHARS } from './limits.ts';

/** Lower case, with hyphens. */
export const Uuid = Type.String({
  pattern: '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$',
});

/** Earlier versions leave it out. */
export const UpdatedAt = Type.String({
  format: 'date-time',
  description: 'When its record was changed last, by a request or by the service.',
});

export const nullable = <T extends TSchema>(schema: T, description: string) =>
  Type.Union([schema, Type.Null()], { description });

export const text = (maxLength: number) => Type.String({ maxLength });
/** A number that fits an integer column. */
export const Count = Type.Integer({ minimum: 0, maximum: BOUNDS.int32 });
/** A counter or a number of bytes. */
export const Large = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });
/** Name of a kind, a capability, a status or a message type. */
export const Name = Type.String({ pattern: '^[a-z][a-z0-9-]{0,63}$' });

/** Of organizations and projects. */
export const Named = Type.Object({
  name: Type.String({
    description: `1 to ${NAME_CHARS} characters, without control characters. Surrounding white space is removed.`,
  }),
});

/** Meanings of errors. */
export const BAD_NAME = 'The name is empty, too long or has control characters.';
export const UNKNOWN_ORGANIZATION = 'There is no such organization, or the caller is not a member of it.';
export const UNKNOWN_ID = 'The id is unknown, malformed or of another project.';
/** 503 of what is read from a host, or done there. */
export const HOST_STARTING =
  'Its machine is starting and does not know yet what it has: try again after `Retry-After`.';
