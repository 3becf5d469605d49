/** `rlp volume`. */
import type { Registration } from './registration.ts';

export function volumeCommands({ program, lazy }: Registration): void {
  const volume = program
    .command('volume')
    .summary('folders that outlive sandboxes')
    .description(
      'Volumes: folders that outlive the sandboxes that have them mounted (rlp run -v NAME:/path).',
    );
  volume
    .command('create')
    .description('Create a volume. It takes no space until something is written to it.')
    .argument('<name>', 'unique in the project')
    .option('--size <size>', 'what fits in it: GiB, or with g or t (default: 100g)')
    .action(lazy(async () => (await import('../commands/volumes.ts')).createVolume));
  volume
    .command('ls', { isDefault: true })
    .description('List volumes, newest first.')
    .option('-a, --all', 'deleted ones too')
    .action(lazy(async () => (await import('../commands/volumes.ts')).listVolumes));
  volume
    .command('show')
    .description('Show a volume: its use, why changes are not committed, and the conflicts of its merges.')
    .argument('<volume>', 'name or id')
    .action(lazy(async () => (await import('../commands/volumes.ts')).showVolume));
  volume
    .command('rm')
    .description('Delete volumes with everything in them. One that a sandbox has attached is not deleted.')
    .argument('<volume...>', 'names or ids')
    .action(lazy(async () => (await import('../commands/volumes.ts')).removeVolumes));
  volume
    .command('cp')
    .description(
      'Copy a file or a folder between here and a volume. - is stdin or stdout. A sandbox that mounts the volume is made for it, ' +
        'and deleted at the end.',
    )
    .argument('<source>', 'PATH or VOLUME:PATH')
    .argument('<target>', 'VOLUME:PATH or PATH')
    .option('--image <image>', 'of that sandbox; folders need /bin/sh and tar in it', 'busybox')
    .action(lazy(async () => (await import('../commands/volume-cp.ts')).copyVolume));
  volume
    .command('history')
    .description('List the commits of a volume that are kept, newest first.')
    .argument('<volume>', 'name or id')
    .action(lazy(async () => (await import('../commands/volume-history.ts')).volumeHistory));
  volume
    .command('restore')
    .description('Make the tree of an older commit the newest again. No sandbox may have the volume mounted.')
    .argument('<volume>', 'name or id')
    .argument('<commit>', 'id of a commit, or the beginning of one: see rlp volume history')
    .action(lazy(async () => (await import('../commands/volume-history.ts')).restoreVolume));
  volume
    .command('commit')
    .description(
      'Commit what sandboxes have written to a volume now. It happens by itself in the background.',
    )
    .argument('<volume>', 'name or id')
    .action(lazy(async () => (await import('../commands/volume-history.ts')).commitVolume));
}
