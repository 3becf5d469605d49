/**
 * The envelope: assignments and reports have the same outer form for every kind of resource. `generation` fences both
 * directions: it grows by one whenever the desired state changes, a runner ignores assignments of an older generation,
 * and control ignores reports of one.
 */
import { Type, type Static, type TSchema } from 'typebox';
import { Count, Name, Uuid } from '../wire/platform/fields.ts';

const header = { kind: Name, id: Uuid, generation: Count };

/** Identifies one resource in one generation. */
export const ItemHeader = Type.Object(header);
export type ItemHeader = Static<typeof ItemHeader>;

/** Control to runner: the desired state of one resource of any kind. `deleted` and `cancelled` end it. */
export const AnyAssignment = Type.Object({ ...header, desired: Name, spec: Type.Unknown() });
export type AnyAssignment = Static<typeof AnyAssignment>;

/**
 * Runner to control: the observed state of one resource of any kind. Every kind has the status `unsupported`, with
 * `detail.error`: the runner does not know this kind, or cannot read the assignment.
 */
export const AnyReport = Type.Object({ ...header, status: Name, detail: Type.Unknown() });
export type AnyReport = Static<typeof AnyReport>;

/** An item that its receiver does not know or cannot read, and why. */
export const UnsupportedItem = Type.Object({ ...header, error: Type.String() });
export type UnsupportedItem = Static<typeof UnsupportedItem>;

/** The assignments of one kind. `desired`: schema of its desired states. */
export function assignmentOf<K extends string, D extends TSchema, S extends TSchema>(
  kind: K,
  desired: D,
  spec: S,
) {
  return Type.Object({ ...header, kind: Type.Literal(kind), desired, spec });
}

/** The reports of one kind. `status`: schema of its statuses, `unsupported` among them. */
export function reportOf<K extends string, S extends TSchema, D extends TSchema>(
  kind: K,
  status: S,
  detail: D,
) {
  return Type.Object({ ...header, kind: Type.Literal(kind), status, detail });
}

/** Whether this assignment ends its resource. */
export function endsResource({ desired }: Pick<AnyAssignment, 'desired'>): boolean {
  return desired === 'deleted' || desired === 'cancelled';
}
