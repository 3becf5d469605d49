/** `rlp snapshot`. */
import { Option } from 'commander';
import type { Registration } from './registration.ts';

export function snapshotCommands({ program, lazy }: Registration): void {
  const snapshot = program
    .command('snapshot')
    .summary('capture running sandboxes, for others to begin from')
    .description(
      'Capture running sandboxes. rlp run --from-snapshot NAME creates sandboxes from a snapshot.',
    );
  snapshot
    .command('create')
    .description('Capture a running sandbox, which continues to run, and print the id of the snapshot.')
    .argument('<vm>')
    .argument('<name>', 'unique in the project')
    .addOption(
      new Option(
        '--kind <kind>',
        'disk alone, or memory too (default: full for a persistent sandbox, else disk)',
      ).choices(['disk', 'full']),
    )
    .option('--no-wait', 'print the id at once')
    .option('--wait-timeout <duration>', 'how long to wait until it is ready (default: 15m)')
    .action(lazy(async () => (await import('../commands/snapshots.ts')).createSnapshot));
  snapshot
    .command('ls', { isDefault: true })
    .description('List snapshots, newest first.')
    .option('-q, --quiet', 'ids only')
    .action(lazy(async () => (await import('../commands/snapshots.ts')).listSnapshots));
  snapshot
    .command('rm')
    .description('Delete snapshots. One that others descend from cannot be deleted before them.')
    .argument('<snapshot...>', 'names or ids')
    .option('-f, --force', 'those that do not exist are no error')
    .action(lazy(async () => (await import('../commands/snapshots.ts')).removeSnapshots));
}
