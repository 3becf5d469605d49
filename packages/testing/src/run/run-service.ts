/** The service of a run: started for the first file that shares it, stopped after the last. */
import assert from 'node:assert/strict';
import { leftovers } from '../leftovers.ts';
import type { Service } from '../service.ts';
import { startSharedService } from '../shared-service.ts';
import type { Results } from './results.ts';

export class SharedService {
  #started: Promise<Service | undefined> | undefined;

  /** Never rejects: files that find no service start their own. */
  async start(): Promise<void> {
    this.#started ??= startSharedService().catch((error: unknown) => {
      process.stdout.write(`no shared service: ${String(error)}\n`);
      return undefined;
    });
    await this.#started;
  }

  /** Stops the service in any state. Counts as one test: it ends with 0 and leaves nothing on the machine. */
  async stop(results: Results): Promise<void> {
    const service = await this.#started;
    if (service === undefined) return;
    try {
      assert.equal(await service.stop(), 0, service.lastWords);
      assert.deepEqual(await leftovers(service.home), []);
      results.add({ passed: 1, failed: 0 });
    } catch (error) {
      const name = 'the shared service stops and leaves nothing';
      results.add({ passed: 0, failed: 1 }, [{ where: '', name, error }]);
    } finally {
      await service[Symbol.asyncDispose]();
    }
  }
}
