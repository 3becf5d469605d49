/**
 * Stops the virtual processors of a sandbox while it serves nothing: `POST freezePath(…)` and `POST thawPath(…)` on the data
 * server of its runner, with the data token of the sandbox. Both may be repeated. The caller draws a new turn for each thaw. A
 * freeze names the turn of the last thaw and is refused with 409 after any other: so a freeze that arrives late, or from an
 * earlier user of the sandbox, has no effect.
 */
import { Type, type Static } from 'typebox';
import { Uuid } from '../wire/platform/fields.ts';

export const freezePath = (vmId: string): string => `/vms/${encodeURIComponent(vmId)}/freeze`;
export const thawPath = (vmId: string): string => `/vms/${encodeURIComponent(vmId)}/thaw`;

export const IdleTurn = Type.Object({ turn: Uuid });
export type IdleTurn = Static<typeof IdleTurn>;
