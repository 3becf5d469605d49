// A runner that is to be killed at a failpoint: brings one sandbox from its present to the desired state.
// Arguments: home, sandbox id, JSON of the steps [{generation, desired, start_from?}].
import { TestRunner } from './sandboxes.ts';
import type { Assignment } from '../../src/reconcile/assignment.ts';

const [home = '', vmId = '', steps = '[]'] = process.argv.slice(2);
const runner = await TestRunner.open(home);
for (const { generation, desired, ...more } of JSON.parse(steps) as Assignment[]) {
  runner.want(vmId, generation, desired, more);
  await runner.reported(generation, desired);
  await runner.reconciler.get(vmId)?.idle();
}
await runner.detach();
