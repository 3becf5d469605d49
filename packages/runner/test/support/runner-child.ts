// A runner in a process of its own, so that it can be killed: does what `runner-process.ts` asks, one call at a time.
import type { ObservedStatus } from '@releap/contract';
import type { RunnerCall } from './runner-process.ts';
import { TestRunner } from './sandboxes.ts';
import type { SnapshotAssignment } from '../../src/reconcile/assignment.ts';

const [home = '', waiting = '0'] = process.argv.slice(2);
const runner = await TestRunner.open(home, { waiting: Number(waiting) });

async function answer({ method, args }: RunnerCall): Promise<unknown> {
  switch (method) {
    case 'want':
      runner.want(...(args as Parameters<TestRunner['want']>));
      return undefined;
    case 'reported': {
      const [vmId, generation, status] = args as [string, number, ObservedStatus];
      const found = await runner.reported(generation, status, { of: vmId });
      await runner.reconciler.get(vmId)?.idle();
      return found;
    }
    case 'observed':
      return runner.reconciler.get(args[0] as string)?.observation;
    case 'sh':
      return await runner.sh(...(args as Parameters<TestRunner['sh']>));
    case 'snapshot':
      return await runner.snapshot(args[0] as SnapshotAssignment);
    case 'hasNetwork':
      return runner.network.adopt(args[0] as string) !== undefined;
    case 'warmedUp':
      await runner.warmedUp();
      return undefined;
    case 'detach':
      await runner.detach();
      return undefined;
    default:
      throw new Error(`a runner cannot ${String(method)}`);
  }
}

process.on('message', (call: RunnerCall) => {
  answer(call).then(
    (result) => process.send?.({ id: call.id, result }),
    (error: Error) => process.send?.({ id: call.id, error: error.message }),
  );
});
process.on('disconnect', () => process.exit());
process.send?.({ open: true });
