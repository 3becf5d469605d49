/** `rlp secret` and `rlp registry`. */
import { Option } from 'commander';
import { collect, type Registration } from './registration.ts';

export function secretCommands({ program, context, finish }: Registration): void {
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
    .action(async (name: string, options) => {
      const { setSecret } = await import('../commands/secrets.ts');
      await finish(setSecret(context(), name, options));
    });
  secret
    .command('ls', { isDefault: true })
    .description('List secrets, without their values, which cannot be read.')
    .action(async () => {
      const { listSecrets } = await import('../commands/secrets.ts');
      await finish(listSecrets(context()));
    });
  secret
    .command('rm')
    .description('Delete secrets. Sandboxes that have them keep them until they end.')
    .argument('<name...>')
    .action(async (names: string[]) => {
      const { removeSecrets } = await import('../commands/secrets.ts');
      await finish(removeSecrets(context(), names));
    });

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
    .action(async (host: string, options) => {
      const { setRegistry } = await import('../commands/secrets.ts');
      await finish(setRegistry(context(), host, options));
    });
  registry
    .command('ls', { isDefault: true })
    .description('List registries with credentials, without the passwords.')
    .action(async () => {
      const { listRegistries } = await import('../commands/secrets.ts');
      await finish(listRegistries(context()));
    });
  registry
    .command('rm')
    .description('Delete the credentials for registries.')
    .argument('<host...>')
    .action(async (hosts: string[]) => {
      const { removeRegistries } = await import('../commands/secrets.ts');
      await finish(removeRegistries(context(), hosts));
    });
}
