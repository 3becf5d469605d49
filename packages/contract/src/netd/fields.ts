/** What the protocols between a runner and its helper processes have in common. */
import { Type } from 'typebox';

export const Seq = Type.Integer({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER });
export const VmId = Type.String({ minLength: 1, maxLength: 128 });

/** From the runner, beside what it puts. */
export const Remove = Type.Object({ type: Type.Literal('remove'), seq: Seq, vm_id: VmId });
export const Synced = Type.Object({ type: Type.Literal('synced'), seq: Seq });
export const Ping = Type.Object({ type: Type.Literal('ping'), seq: Seq });
export const Stop = Type.Object({ type: Type.Literal('stop') });
