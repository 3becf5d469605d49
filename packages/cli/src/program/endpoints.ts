/** `rlp expose`, `rlp unexpose` and `rlp preview`. */
import type { Registration } from './registration.ts';

export function endpointCommands({ program, context, finish, lazy }: Registration): void {
  program
    .command('expose')
    .summary('give a port of a sandbox a URL')
    .description(
      'Expose a port of a sandbox at a URL, and print it. Requests need a credential unless --public is given. ' +
        'Without a port: list the exposed ports.',
    )
    .argument('<vm>')
    .argument('[port]')
    .option('--public', 'reachable without a credential; without it an exposed port becomes private')
    .action(async (vm: string, port: string | undefined, options) => {
      const { expose, listExposed } = await import('../commands/endpoints.ts');
      await finish(port === undefined ? listExposed(context(), vm) : expose(context(), vm, port, options));
    });

  program
    .command('unexpose')
    .description('Remove the URL of a port. Its tokens are no longer valid.')
    .argument('<vm>')
    .argument('<port>')
    .action(lazy(async () => (await import('../commands/endpoints.ts')).unexpose));

  program
    .command('preview')
    .summary('open a port of a sandbox in a browser')
    .description(
      'Open a port of a sandbox in a browser, or print the URL with its token where there is none. Exposes the port as ' +
        'private if it is not exposed.',
    )
    .argument('<vm>')
    .argument('<port>')
    .option('--expires <duration>', 'the token expires after this time: 30, 90s, 5m or 2h (default: never)')
    .option('--no-open', 'print the URL only')
    .option('--token', 'print only the token, for the header x-service-preview-token')
    .action(lazy(async () => (await import('../commands/endpoints.ts')).preview));
}
