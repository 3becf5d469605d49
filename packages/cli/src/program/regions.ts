/** Regions, for the operator. */
import type { Command } from 'commander';
import type { Registration } from './registration.ts';

export function regionCommands({ program, lazy }: Registration): void {
  const region = program
    .command('region')
    .summary('where sandboxes may be placed')
    .description(
      "Regions and global regions, which are groups of them. As with rlp host, the operator's token is read. " +
        'A server whose configuration has a name or a URL for its region sets them again when it starts.',
    );
  region
    .command('ls', { isDefault: true })
    .description('List regions, disabled ones too, and global regions.')
    .action(lazy(async () => (await import('../commands/regions.ts')).listRegions));
  withFields(
    region
      .command('create')
      .description('Create a region, which hosts with its slug as RELEAP_REGION can join then.')
      .argument('<region>', 'slug: letters, digits and inner hyphens'),
  ).action(lazy(async () => (await import('../commands/regions.ts')).createRegion));
  withFields(
    region
      .command('set')
      .summary('change, enable or disable a region')
      .description(
        'Change a region. A disabled one takes no new sandboxes, and clients do not see it; its sandboxes and functions continue.',
      )
      .argument('<region>'),
  ).action(lazy(async () => (await import('../commands/regions.ts')).setRegion));
  region
    .command('drain')
    .summary('take sandboxes off all hosts of a region')
    .description(
      'Drain every host of a region, as rlp host drain does: persistent sandboxes are paused, ephemeral ones run until they ' +
        'end. Disable the region first, so that nothing waits there for a host.',
    )
    .argument('<region>')
    .option('--force', 'delete those that are not persistent')
    .option('--wait', 'return when nothing runs there any more')
    .option('--wait-timeout <duration>', 'how long to wait for that (default: 30m)')
    .action(lazy(async () => (await import('../commands/drain-region.ts')).drainRegion));
  region
    .command('store')
    .summary('where hosts of a region store images and snapshots')
    .description(
      'Give a region an S3 bucket of its own, or return it to the store of the deployment. Images and disk snapshots of elsewhere are ' +
        'copied into it when they are used in the region first. The secret key is read from the terminal, or from stdin when it is piped. ' +
        'The same command with a new key replaces the key. Upgrade all control servers first.',
    )
    .argument('<region>')
    .argument('<bucket>', 's3://BUCKET[/PREFIX], or none: the store of the deployment')
    .option('--access-key-id <id>', 'id of the access key')
    .option('--endpoint <url>', 'of a service other than AWS')
    .option('--s3-region <name>', 'region with which requests are signed (default: us-east-1)')
    .action(lazy(async () => (await import('../commands/regions.ts')).setRegionStore));
  region
    .command('rm')
    .description('Delete a region that is disabled and has nothing in it.')
    .argument('<region>')
    .action(lazy(async () => (await import('../commands/regions.ts')).removeRegion));
  region
    .command('default')
    .summary('the default region of an organization or a project')
    .description(
      'Set where sandboxes of an organization or a project are placed that name no region: a project’s default comes before its ' +
        'organization’s, and that before the platform’s (rlp region set REGION --default).',
    )
    .argument('<region>', 'also a global region, or world; none: no default of its own')
    .option('--org <id>', 'of this organization')
    .option('--project <id>', 'of this project')
    .action(lazy(async () => (await import('../commands/regions.ts')).setDefault));

  const group = region.command('global').description('Groups of regions that a create can name.');
  group
    .command('create')
    .description('Create a global region; rlp region set REGION --global ID puts regions into it.')
    .argument('<id>')
    .option('--name <text>', 'what to call it (default: its id)')
    .action(lazy(async () => (await import('../commands/regions.ts')).createGlobal));
  group
    .command('rename')
    .description('Rename a global region.')
    .argument('<id>')
    .argument('<name>')
    .action(lazy(async () => (await import('../commands/regions.ts')).renameGlobal));
  group
    .command('rm')
    .description('Delete a global region that no region belongs to.')
    .argument('<id>')
    .action(lazy(async () => (await import('../commands/regions.ts')).removeGlobal));
}

function withFields(command: Command): Command {
  return command
    .option('--name <text>', 'what to call it')
    .option('--enable', 'let it take new sandboxes')
    .option('--disable', 'let it take none')
    .option('--default', 'make it the default of the platform')
    .option('--global <id>', 'the global region that it belongs to')
    .option('--no-global', 'it belongs to none')
    .option('--toolbox-url <url>', 'base URL of the toolbox of its sandboxes; empty: none')
    .option('--preview-url <url>', 'base URL of its previews; empty: none');
}
