/** Fields that several messages share. */
import { Type } from 'typebox';
import { BOUNDS } from '../wire/limits.ts';

export { Uuid } from '../wire/internal-fields.ts';
export const text = (maxLength: number) => Type.String({ maxLength });
/** A number that fits an integer column. */
export const Count = Type.Integer({ minimum: 0, maximum: BOUNDS.int32 });
/** A counter or a number of bytes. */
export const Large = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });
/** Name of a kind, a capability, a status or a message type. */
export const Name = Type.String({ pattern: '^[a-z][a-z0-9-]{0,63}$' });
