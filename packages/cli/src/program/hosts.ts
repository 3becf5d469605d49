/** What the operator of a service does on its machine. */
import { Option } from 'commander';
import { collect, type Registration } from './registration.ts';

export function hostCommands({ program, lazy }: Registration): void {
  program
    .command('doctor')
    .description('Check what this machine can do as a host of sandboxes, and what is missing.')
    .option('--no-trial', 'do not start a trial guest to find out about hardware virtualisation')
    .option('--probe', 'start a trial guest, ignoring the cached result')
    .option(
      '--verify-disks',
      'read the disks of sandboxes and snapshots, and compare them with their digests',
    )
    .action(lazy(async () => (await import('../commands/doctor.ts')).doctor));

  program
    .command('preview-ca')
    .summary('print the root certificate of the development CA')
    .description(
      'Print the root certificate that clients have to trust for previews with RELEAP_PREVIEW_TLS=dev, and how. Works on the ' +
        'machine of the service, as its user.',
    )
    .option('-o, --output <file>', 'write it to this file')
    .action(lazy(async () => (await import('../commands/preview-ca.ts')).previewCa));

  const host = program
    .command('host')
    .summary('the machines that hold sandboxes')
    .description(
      "What the operator does with the machines that hold sandboxes. Reads the operator's token " +
        '($RELEAP_HOME/operator.token), so it works on the machine of the service, as its user. HOST is an id, ' +
        'enough of its beginning, or a name that one host has.',
    );
  host
    .command('ls', { isDefault: true })
    .description('List hosts, with the capacity that is allocated to sandboxes.')
    .action(lazy(async () => (await import('../commands/hosts.ts')).listHosts));
  host
    .command('show')
    .description(
      'Show a host, with its classes of hardware and where they come from, and the moves of its sandboxes to other hosts.',
    )
    .argument('<host>')
    .action(lazy(async () => (await import('../commands/host-classes.ts')).showHost));
  host
    .command('set')
    .summary('set the classes of hardware of a host')
    .description(
      'Set classes of hardware of a host, which win over those that its runner declares. "declared" in place of a class: ' +
        'what the runner declares applies again.',
    )
    .argument('<host>')
    .option('--cpu-type <slug>', 'a CPU type')
    .option('--network-class <slug>', 'a network class')
    .option('--disk-class <slug>', 'a disk class')
    .action(lazy(async () => (await import('../commands/host-classes.ts')).setHostClasses));
  host
    .command('rename')
    .summary('set the name of a host')
    .description(
      'Set the name of a host, which wins over the one that its runner declares (RELEAP_HOST_NAME).',
    )
    .argument('<host>')
    .argument('[name]', '1 to 64 printable characters')
    .option('--clear', 'return to the name that its runner declares')
    .action(lazy(async () => (await import('../commands/host-classes.ts')).renameHost));
  host
    .command('drain')
    .summary('take sandboxes off a host, and give it none')
    .description(
      'Give a host no more sandboxes, and take off those it has: persistent ones are paused, or stopped where that ' +
        'cannot be paused. Ephemeral ones run until they end.',
    )
    .argument('<host>')
    .option('--force', 'delete those that are not persistent')
    .option('--move', 'move persistent ones to other hosts of the region, where those run again that ran')
    .option(
      '--wait',
      'return when nothing runs there any more, and with --move no persistent sandbox is there',
    )
    .option('--wait-timeout <duration>', 'how long to wait for that (default: 30m)')
    .action(lazy(async () => (await import('../commands/hosts.ts')).drain));
  host
    .command('undrain')
    .description('Give a host sandboxes again.')
    .argument('<host>')
    .action(lazy(async () => (await import('../commands/hosts.ts')).undrain));
  host
    .command('evict')
    .description('Take spot sandboxes off: persistent ones are paused, others deleted.')
    .argument('[vm]', 'of another project: its id')
    .option('--all', 'every spot sandbox')
    .option('--host <host>', 'with --all: on this host only')
    .action(lazy(async () => (await import('../commands/hosts.ts')).evict));

  host
    .command('join-settings')
    .summary('print what a further machine joins with')
    .description(
      'Print the settings with which another machine joins as a host: the URL of the control plane, the fingerprint of its ' +
        'authority, and a new join token, for one host and an hour. They are lines of an environment file (docs/hosts.md).',
    )
    .option('--shared', 'print the join token of the deployment, which does not expire')
    .option('--control-url <url>', 'https:// URL of the internal listener, as that machine reaches it')
    .action(lazy(async () => (await import('../commands/host-join.ts')).joinSettings));

  host
    .command('join-token')
    .summary('create a token with which a further machine joins')
    .description(
      'Create a token with which further machines join as hosts (npm start -- join TOKEN there), and print it. It has the URL of the ' +
        'control plane and the fingerprint of its authority, and is not shown again.',
    )
    .option('--control-url <url>', 'https:// URL of the internal listener, as these machines reach it')
    .option('--expires <duration>', 'how long it is accepted, from 60s to 720h (default: 1h)')
    .option('--uses <number>', 'how many hosts may join with it (default: 1)')
    .option('--name <text>', 'what it is for, shown in the list')
    .action(lazy(async () => (await import('../commands/join-tokens.ts')).createToken));
  host
    .command('join-tokens')
    .description('List the join tokens, without their secrets, with the hosts that have joined with each.')
    .action(lazy(async () => (await import('../commands/join-tokens.ts')).listTokens));
  host
    .command('join-token-revoke')
    .description('Revoke a join token. Hosts that have joined with it stay.')
    .argument('<id>')
    .action(lazy(async () => (await import('../commands/join-tokens.ts')).revokeToken));

  host
    .command('permit-join')
    .summary('allow a host to join again')
    .description(
      'Revoke the credential of a host, which ends its connection, and print a token with which it can join once more ' +
        '(RELEAP_JOIN_TOKEN of its runner, for an hour). Its sandboxes continue.',
    )
    .argument('<host>')
    .action(lazy(async () => (await import('../commands/hosts.ts')).permitJoin));

  host
    .command('forget')
    .summary('give up a lost host')
    .description(
      'Give up a host that is lost and will not come back: its sandboxes and snapshots fail, its credential is revoked, ' +
        'and it is no longer listed. Repeated with the whole id, it finishes an interrupted call.',
    )
    .argument('<host>')
    .option('--yes', 'without it, only show what would be lost')
    .action(lazy(async () => (await import('../commands/hosts.ts')).forget));

  const hardware = program
    .command('class')
    .summary('classes of hardware that sandboxes may ask for')
    .description(
      'Classes of hardware: values of cpu_type, network_class and disk_class of a create, each with a tier. ' +
        'A sandbox that asks for one is placed on hosts of its tier or a higher one. KIND is cpu_type, network_class or disk_class.',
    );
  hardware
    .command('ls', { isDefault: true })
    .description('List the classes, with the number of hosts that have each.')
    .action(lazy(async () => (await import('../commands/hardware-classes.ts')).listClasses));
  hardware
    .command('set')
    .description('Define a class, or replace its definition.')
    .argument('<kind>')
    .argument('<slug>')
    .requiredOption('--tier <number>', '1 is the lowest; CPU tiers are counted per architecture')
    .option('--name <text>', 'what to call it (default: its slug)')
    .addOption(new Option('--arch <arch>', 'of a CPU type').choices(['amd64', 'arm64']))
    .option(
      '--model <text>',
      'of a CPU type: hosts whose processor has this text in its name are of it (repeatable)',
      collect,
    )
    .action(lazy(async () => (await import('../commands/hardware-classes.ts')).setClass));
  hardware
    .command('rm')
    .description('Delete a class that no host has and no sandbox has asked for.')
    .argument('<kind>')
    .argument('<slug>')
    .action(lazy(async () => (await import('../commands/hardware-classes.ts')).removeClass));

  const admin = program
    .command('admin')
    .summary('what else only the operator may do')
    .description("What else only the operator may do. As with rlp host, the operator's token is read.");
  admin
    .command('grant')
    .description('Give an organization credits, and print its balance.')
    .argument('<org>', 'id of the organization')
    .argument('<amount>', 'as in 100 or 2.5')
    .option('--note <text>', 'for the ledger, where the members read it')
    .option('--once <key>', 'called again with the same key within a day, it gives nothing twice')
    .option('--adjustment', 'enter it as an adjustment, which may be below 0 (after --, as in -- ORG -5)')
    .action(lazy(async () => (await import('../commands/credits.ts')).grant));
}
