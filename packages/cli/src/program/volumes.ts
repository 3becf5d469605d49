/** `rlp volume`. */
import type { Registration } from './registration.ts';

export function volumeCommands({ program, context, finish }: Registration): void {
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
    .action(async (name: string, options) => {
      const { createVolume } = await import('../commands/volumes.ts');
      await finish(createVolume(context(), name, options));
    });
  volume
    .command('ls', { isDefault: true })
    .description('List volumes, newest first.')
    .option('-a, --all', 'deleted ones too')
    .action(async (options) => {
      const { listVolumes } = await import('../commands/volumes.ts');
      await finish(listVolumes(context(), options));
    });
  volume
    .command('show')
    .description('Show a volume: its use, why changes are not committed, and the conflicts of its merges.')
    .argument('<volume>', 'name or id')
    .action(async (name: string) => {
      const { showVolume } = await import('../commands/volumes.ts');
      await finish(showVolume(context(), name));
    });
  volume
    .command('rm')
    .description('Delete volumes with everything in them. One that a sandbox has attached is not deleted.')
    .argument('<volume...>', 'names or ids')
    .action(async (names: string[]) => {
      const { removeVolumes } = await import('../commands/volumes.ts');
      await finish(removeVolumes(context(), names));
    });
  volume
    .command('cp')
    .description(
      'Copy a file or a folder between here and a volume. - is stdin or stdout. A sandbox that mounts the volume is made for it, ' +
        'and deleted at the end.',
    )
    .argument('<source>', 'PATH or VOLUME:PATH')
    .argument('<target>', 'VOLUME:PATH or PATH')
    .option('--image <image>', 'of that sandbox; folders need /bin/sh and tar in it', 'busybox')
    .action(async (source: string, target: string, options) => {
      const { copyVolume } = await import('../commands/volume-cp.ts');
      await finish(copyVolume(context(), source, target, options));
    });
  volume
    .command('history')
    .description('List the commits of a volume that are kept, newest first.')
    .argument('<volume>', 'name or id')
    .action(async (name: string) => {
      const { volumeHistory } = await import('../commands/volume-history.ts');
      await finish(volumeHistory(context(), name));
    });
  volume
    .command('restore')
    .description('Make the tree of an older commit the newest again. No sandbox may have the volume mounted.')
    .argument('<volume>', 'name or id')
    .argument('<commit>', 'id of a commit, or the beginning of one: see rlp volume history')
    .action(async (name: string, commit: string) => {
      const { restoreVolume } = await import('../commands/volume-history.ts');
      await finish(restoreVolume(context(), name, commit));
    });
  volume
    .command('commit')
    .description(
      'Commit what sandboxes have written to a volume now. It happens by itself in the background.',
    )
    .argument('<volume>', 'name or id')
    .action(async (name: string) => {
      const { commitVolume } = await import('../commands/volume-history.ts');
      await finish(commitVolume(context(), name));
    });
}
