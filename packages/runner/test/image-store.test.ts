/** The image store with a registry. All of these tests share one registry. */
import './image-store/ensure.ts';
import './image-store/registries.ts';
import './image-store/refused.ts';
import './image-store/upkeep.ts';
