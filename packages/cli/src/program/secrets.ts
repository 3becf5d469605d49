/** `rlp secret` and `rlp registry`. */
import { Option } from 'commander';
import { collect, type Registration } from './registration.ts';

export function secretCommands({ program, lazy }: Registration): void {
  const secret = program
    .command('secret')
    .summary('values that sandboxes use without seeing them')
    .description(
      'Secrets of the project. A sandbox made with rlp run --secret NAME sees a placeholder in the variable NAME.',
    );
  secret
    .command('set')
    .description(
      'Set a secret, or replace it with all that is said here. The value comes from stdin (without the line break ' +
        'at its end), or is typed in unseen.',
    )
    .argument('<name>', 'also that of the variable')
    .option(
      '-d, --domain <domain>',
      'where it may be sent: a host, or *.domain (repeatable; default: nowhere)',
      collect,
    )
    .option('--allow-http', 'also send the value over plain HTTP, where everyone on the way can read it')
    .option('--description <text>', 'what it is for')
    .action(lazy(async () => (await import('../commands/secrets.ts')).setSecret));
  secret
    .command('ls', { isDefault: true })
    .description('List secrets, without their values, which cannot be read.')
    .action(lazy(async () => (await import('../commands/secrets.ts')).listSecrets));
  secret
    .command('rm')
    .description('Delete secrets. Sandboxes that have them keep them until they end.')
    .argument('<name...>')
    .action(lazy(async () => (await import('../commands/secrets.ts')).removeSecrets));

  const registry = program
    .command('registry')
    .summary('credentials for registries of images')
    .description('Credentials with which images of the project are pulled: one for each registry.');
  registry
    .command('set')
    .description(
      'Set the credentials for a registry. The password or token comes from stdin (without the line break at its ' +
        'end), or is typed in unseen.',
    )
    .argument('<host>', 'as in ghcr.io or registry.example.com:5000')
    .requiredOption('-u, --username <name>', 'the user name')
    .addOption(
      new Option('--kind <kind>', 'which hosts it may be for (default: basic, any)').choices([
        'basic',
        'ghcr',
        'gcr',
        'ecr',
      ]),
    )
    .option('--description <text>', 'what it is for')
    .action(lazy(async () => (await import('../commands/secrets.ts')).setRegistry));
  registry
    .command('ls', { isDefault: true })
    .description('List registries with credentials, without the passwords.')
    .action(lazy(async () => (await import('../commands/secrets.ts')).listRegistries));
  registry
    .command('rm')
    .description('Delete the credentials for registries.')
    .argument('<host...>')
    .action(lazy(async () => (await import('../commands/secrets.ts')).removeRegistries));
}
