/** The control plane of the api suite, which also tells what its placement rounds took. Forked by the fleet suite. */
import { placements, recordStatements } from './statement-times.ts';

const take = recordStatements();
process.on('message', () => process.send?.(placements(take())));
// After the driver is instrumented.
await import('../api/control-server.ts');
