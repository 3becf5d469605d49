/** Operations of the compatible protocol that no sandbox has: 501, with an error that names the operation. */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { ToolboxError } from './toolbox-error.ts';

const UNSUPPORTED = { lsp: 'language servers', computeruse: 'computer use' } as const;

export function registerUnsupported(app: FastifyInstance): void {
  void app.register(async (scope) => {
    // The body is not read, whatever it is.
    scope.removeAllContentTypeParsers();
    scope.addContentTypeParser('*', (_request, _payload, done) => done(null));
    for (const [prefix, what] of Object.entries(UNSUPPORTED)) {
      const refuse = async (
        request: FastifyRequest<{ Params: { '*': string } }>,
        _reply: FastifyReply,
      ): Promise<never> => {
        const operation = `${request.method} /${prefix}/${request.params['*']}`;
        throw new ToolboxError(501, `${operation} (${what}) is not supported by this service`);
      };
      scope.all<{ Params: { '*': string } }>(`/vms/:id/toolbox/${prefix}/*`, refuse);
    }
  });
}
