"""What there is by name, a line each: what `prelax list` prints and the Tab key completes.

Here and not beside the code that does it, so that neither has to wait for torch.
"""

SOURCES = {
    "digits": "scikit-learn's handwritten digits: 1,297 + 500 grey images, 10 classes; nothing to download",
    "cifar10": "50,000 + 10,000 colour images of 32 px, 10 classes; data.download=true fetches them",
    "cifar100": "50,000 + 10,000 colour images of 32 px, 100 classes; data.download=true fetches them",
    "tiny-imagenet": "100,000 + 10,000 images, 200 classes, brought to 32 px; data.root is tiny-imagenet-200",
    "imagenette": "9,469 + 3,925 photos, 10 classes of ImageNet; data.root holds train/ and val/",
    "imagenet": "1.28 million + 50,000 photos, 1,000 classes, at 256 px; data.root holds train/ and val/",
    "folder": "any tree of images under data.root: class sub-folders, a CSV (data.labels), or no labels; or shards; "
    "or one .npy, .npz or .h5 file",
}

BACKBONES = {
    "resnet8": "three stages of 16, 32 and 64 channels, for digits and demonstrations (77k weights)",
    "resnet18": "torchvision's ResNet-18, the paper's backbone (11.2M)",
    "resnet34": "torchvision's ResNet-34 (21.3M)",
    "resnet50": "torchvision's ResNet-50 (23.5M)",
    "timm:NAME": "any model of the timm package, for example timm:convnext_nano (pip install 'prelax[timm]')",
    "MODULE:CLASS": "a network of your own: an nn.Module that is made with channels=N and has features, its width",
}

OPERATIONS = {
    "crop": "random resized crop, bilinear or bicubic, antialiased; centre, area and aspect ratio are targets",
    "flip": "left-right mirror image",
    "vertical-flip": "upside-down mirror image",
    "rotation": "quarter turns, clockwise and exact; a 4-way target",
    "free-rotation": "rotation by any angle up to a limit; the angle is a target",
    "jigsaw": "tiles that change places; the permutation is a k-way target",
    "jitter": "brightness, contrast, saturation and hue in a random order per image; four factors are targets",
    "grey": "greyscale",
    "solarise": "levels above a threshold inverted",
    "invert": "the negative",
    "blur": "Gaussian blur",
    "erase": "cutout: a box painted over; its centre and area are targets",
    "noise": "Gaussian noise; its strength is a target",
    "normalise": "mean and standard deviation per channel; the last step, draws nothing",
}

PRESETS = {
    "none": "no augmentation: the image whole (of a long one the middle), for supervised runs",
    "simsiam-32": "SimSiam on 32 px: crop 0.2-1, flip, jitter, grey",
    "simsiam-224": "SimSiam on 224 px: the same with blur (MoCo v2's recipe)",
    "byol-128": "BYOL on 128 px: bicubic crop 0.08-1, flip, jitter, grey; blur and solarise differ between the views",
    "byol-224": "BYOL on 224 px: the same at its original size",
    "digits": "small grey images with an up and a left: crop 0.4-1 and a little noise, 16 px, one channel",
    "medical": "mild, for scans: crop 0.6-1, flip, small rotations, soft contrast, noise; 224 px",
    "satellite": "mild, for images from above: crop 0.4-1, flips, quarter turns, soft colour; 224 px",
}

PROTOCOLS = {
    "knn": "k nearest neighbours (at most a tenth of all) by cosine on features, votes weighted exp(cos / T)",
    "linear": "the paper's linear probe (evaluate.linear): new crops and flips every epoch, last epoch reported",
    "linear-tta": "the paper's linear probe, its test images seen whole, in five boxes, and mirrored",
    "linear-fast": "the paper's linear probe on cached features: seconds on a GPU, minutes for photos on a CPU",
    "logistic": "logistic regression on the features as they are, fitted to the optimum: needs no rate to suit them",
    "knn-10-per-class": "kNN with ten labels a class, over draws of which",
    "linear-1pct": "logistic regression on 1 % of the labels, stratified",
    "linear-10pct": "logistic regression on 10 % of the labels, stratified",
    "finetune": "the whole network trained on all labels; the floor is the same from random weights",
    "finetune-1pct": "the whole network trained on 1 % of the labels, stratified",
    "finetune-10pct": "the whole network trained on 10 % of the labels, stratified",
    "retrieval": "share of the 15 nearest test images (at most half of them) that have the query's class",
    "residual": "what can be read off the residual and the features of what was done to an image",
}

FIGURES = {
    "dynamics": "accuracy, similarity loss and residual norm by epoch; of one or several runs",
    "tsne": "t-SNE of the test set; of one run",
    "retrieval": "random test images and their 15 nearest; of one run",
    "residual-probe": "what a linear reader tells from the residual, and how far features move; of runs so probed",
    "sensitivity": "accuracy over alpha, beta and gamma; of the runs of a sweep, or a JSON file of rows",
    "reverse": "normal against reverse residual; of runs with and without method.reverse, or a JSON file of rows",
    "augmentations": "accuracy under each augmentation alone (Fig. 1a); of such a run, or a JSON file of rows",
}

FORMATS = {
    "torchvision": "weights under torchvision's names, and the few lines that load them",
    "timm": "weights under timm's names, and the few lines that load them",
    "onnx": "a graph from images in 0..1 to features, any batch size",
    "torch-export": "the same as a torch.export program (.pt2): torch alone runs it",
    "hub": "config.json, model.safetensors and a model card, as the Hugging Face Hub keeps them",
}
