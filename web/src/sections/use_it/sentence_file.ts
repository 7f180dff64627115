// The file that the programs of "Use it" read: the sentence on the screen as numbers, and the weights in use. This
// module is loaded only when the visitor saves the file.

// The source: with the package's built entry, boot.ts would share a chunk with this module, one more request at the start.
import { writeSafetensors } from '../../../../bindings/src/safetensors/write.js';
import { embedDim } from '../../attention/embedding.js';
import type { ForwardResult } from '../../attention/messages.js';
import { headDim } from '../../attention/patterns.js';

export function sentenceFile({ tokens, heads, weights, trace }: Pick<ForwardResult, 'tokens' | 'heads' | 'weights' | 'trace'>): Uint8Array<ArrayBuffer> {
  const wide = heads.length * headDim;
  const bytes = writeSafetensors(
    {
      x: { shape: [1, tokens.length, embedDim], data: trace.x.data },
      q_proj_weight: { shape: [wide, embedDim], data: weights.qProj },
      k_proj_weight: { shape: [wide, embedDim], data: weights.kProj },
      v_proj_weight: { shape: [wide, embedDim], data: weights.vProj },
      'out_proj.weight': { shape: [embedDim, wide], data: weights.outProj },
    },
    { metadata: { sentence: tokens.join(' '), heads: heads.join(' ') } },
  );
  return new Uint8Array(bytes);
}
